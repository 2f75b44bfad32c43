import pytest
import torch
from torch import nn

from client_app.tasks import token_likelihood
from client_app.tasks.token_likelihood import token_log_likelihoods


@pytest.mark.parametrize("most", [1, 40, 2**25])
def test_values_and_gradients_are_those_of_the_full_softmax(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_likelihood, "MOST_LOGITS", most)
    torch.manual_seed(0)
    head, targets = nn.Linear(6, 11), torch.randint(11, (9,))
    hidden = torch.randn(9, 6, requires_grad=True)

    logs = token_log_likelihoods(head, hidden, targets, 11)
    (gradient,) = torch.autograd.grad((logs * torch.arange(9)).sum(), hidden)

    full = head(hidden).log_softmax(dim=1)[torch.arange(9), targets]
    (expected,) = torch.autograd.grad((full * torch.arange(9)).sum(), hidden)
    assert torch.allclose(logs, full, atol=1e-6)
    assert torch.allclose(gradient, expected, atol=1e-5)


def test_the_head_works_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_likelihood, "MOST_LOGITS", 30)
    sizes = []

    def head(hidden: torch.Tensor) -> torch.Tensor:
        sizes.append(len(hidden))
        return hidden.repeat(1, 5)

    with torch.inference_mode():
        token_log_likelihoods(head, torch.zeros(7, 2), torch.zeros(7, dtype=torch.int64), 10)

    assert sizes == [3, 3, 1]
