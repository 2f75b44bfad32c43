"""The common loop against a plain loop, and what it promises about seeds and errors."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from client_app.batching import batches
from client_app.methods.base import LocalRule
from client_app.methods.fedsvd import FedSvd
from client_app.training import train
from fedapp.config import RunConfig
from fedapp.errors import TrainingError
from fedapp.seeds import derive_seed


class Net(nn.Module):
    """A frozen linear layer with one LoRA pair, dropout, and a head."""

    def __init__(self, dropout):
        super().__init__()
        generator = torch.Generator().manual_seed(1)

        def fresh(*shape):
            return nn.Parameter(torch.randn(*shape, generator=generator))

        self.base = nn.Parameter(fresh(6, 5).detach(), requires_grad=False)
        self.a, self.b, self.head = fresh(2, 5), fresh(6, 2), fresh(3, 6)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        hidden = x @ self.base.T + 0.5 * self.dropout(x) @ self.a.T @ self.b.T
        return torch.tanh(hidden) @ self.head.T


class Task:
    def collate(self, items):
        return {
            "x": torch.tensor([item["x"] for item in items]),
            "y": torch.tensor([item["y"] for item in items]),
        }

    def loss(self, model, batch):
        return functional.cross_entropy(model(batch["x"]), batch["y"])


def make_resident(dropout=0.0):
    model = Net(dropout).eval()
    arrays = {"l.lora_A": model.a, "l.lora_B": model.b, "head": model.head}
    parameters = SimpleNamespace(named_arrays=lambda: iter(arrays.items()))
    return SimpleNamespace(
        model=model, task=Task(), parameters=parameters, device=torch.device("cpu")
    )


def make_items(count=11):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(count, 5, generator=generator)
    return [{"x": x[i].tolist(), "y": i % 3, "length": 1 + i % 4} for i in range(count)]


def make_config(**train):
    flat = {"train.batch-size": 4, "train.learning-rate": 0.05, **train}
    return RunConfig.from_flat(flat)


def run(resident, config, items=None, rule=LocalRule, seed=7, epochs=2, total_steps=12, **kwargs):
    return train(
        resident,
        make_items() if items is None else items,
        rule(config, resident.parameters),
        config,
        seed=seed,
        first_step=kwargs.pop("first_step", 0),
        total_steps=total_steps,
        epochs=epochs,
        **kwargs,
    )


def weights(resident):
    return {name: p.detach().clone() for name, p in resident.parameters.named_arrays()}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_equals_a_plain_loop(optimizer):
    config = make_config(
        **{
            "train.optimizer": optimizer,
            "train.schedule": "linear",
            "train.weight-decay": 0.1,
            "train.clip-norm": 0.3,
        }
    )
    resident, oracle, items = make_resident(), make_resident().model, make_items()

    result = run(resident, config, items, total_steps=12, first_step=6)

    trained = [oracle.a, oracle.b, oracle.head]
    plain = (
        torch.optim.AdamW(trained, lr=0.05, weight_decay=0.1, fused=False)
        if optimizer == "adamw"
        else torch.optim.SGD(trained, lr=0.05, weight_decay=0.1, momentum=0.9, fused=False)
    )
    losses = []
    for epoch in range(2):
        for indices in batches(items, 4, derive_seed(7, "epoch", epoch), True):
            plain.param_groups[0]["lr"] = 0.05 * (12 - 6 - len(losses)) / 12
            batch = Task().collate([items[i] for i in indices])
            plain.zero_grad()
            loss = functional.cross_entropy(oracle(batch["x"]), batch["y"])
            loss.backward()
            norm = torch.sqrt(sum(p.grad.square().sum() for p in trained))
            for p in trained:
                p.grad *= min(1.0, 0.3 / (float(norm) + 1e-6))
            plain.step()
            losses.append(loss.item())
    assert result.steps == 6
    assert result.loss == pytest.approx(sum(losses) / 6, rel=1e-5)
    for name, expected in (("a", oracle.a), ("b", oracle.b), ("head", oracle.head)):
        torch.testing.assert_close(getattr(resident.model, name), expected, rtol=1e-4, atol=1e-6)


def test_accumulation_equals_the_larger_batch():
    ungrouped = {"train.length-grouping": False, "train.optimizer": "sgd"}
    split, whole = make_resident(), make_resident()

    # 11 records: groups of 4 + 4 and 3 against batches of 8 and 3, in the same order.
    a = run(split, make_config(**ungrouped, **{"train.gradient-accumulation": 2}))
    b = run(whole, make_config(**ungrouped, **{"train.batch-size": 8}))

    assert a.steps == b.steps == 4
    assert a.loss == pytest.approx(b.loss, rel=1e-5)
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(weights(split)[name], tensor, rtol=1e-4, atol=1e-6)


def test_accumulation_weighs_records_not_batches():
    ungrouped = {"train.length-grouping": False, "train.optimizer": "sgd"}
    split, whole = make_resident(), make_resident()

    run(split, make_config(**ungrouped, **{"train.gradient-accumulation": 3}), epochs=1)
    run(whole, make_config(**ungrouped, **{"train.batch-size": 11}), epochs=1)

    torch.testing.assert_close(split.model.head, whole.model.head, rtol=1e-4, atol=1e-6)


def test_the_result_depends_on_the_seed_alone():
    config, first, second, other = make_config(), *(make_resident(0.4) for _ in range(3))

    run(first, config)
    torch.manual_seed(999)
    torch.rand(17)
    before = torch.random.get_rng_state()
    run(second, config)
    after = torch.random.get_rng_state()
    run(other, config, seed=8)

    assert all(torch.equal(weights(second)[name], w) for name, w in weights(first).items())
    assert not torch.equal(other.model.head, first.model.head)
    assert torch.equal(before, after), "the process's own random state must not change"


def test_dropout_is_on_while_training_only():
    resident, dry = make_resident(0.4), make_resident(0.0)

    run(resident, make_config())
    run(dry, make_config())

    assert not torch.equal(resident.model.a, dry.model.a)
    assert not resident.model.training


def test_frozen_arrays_stay_and_need_a_gradient_again_afterwards():
    resident, start = make_resident(), weights(make_resident())
    seen = []

    class Watch(FedSvd):
        def transform_gradients(self):
            model = resident.model
            seen.append((model.a.requires_grad, model.a.grad is None, model.b.grad is None))

    run(resident, make_config(**{"train.weight-decay": 0.5}), rule=Watch)

    assert seen == [(False, True, False)] * 6
    assert torch.equal(resident.model.a, start["l.lora_A"])
    assert not torch.equal(resident.model.b, start["l.lora_B"])
    assert not torch.equal(resident.model.head, start["head"])
    assert all(p.requires_grad and p.grad is None for _, p in resident.parameters.named_arrays())
    assert not resident.model.base.requires_grad


def test_hooks_are_called_once_per_optimiser_step_in_order():
    calls = []

    class Watch(LocalRule):
        def transform_gradients(self):
            calls.append("transform")

        def after_step(self, learning_rate):
            calls.append("after")
            assert learning_rate == 0.05

    run(make_resident(), make_config(**{"train.gradient-accumulation": 2}), rule=Watch)

    assert calls == ["transform", "after"] * 4  # 2 epochs of 3 batches, 2 steps each


def test_the_penalty_is_clipped_together_with_the_task_gradient():
    class Huge(LocalRule):
        def transform_gradients(self):
            for _, p in self.parameters.named_arrays():
                p.grad += 1e6

    config = make_config(
        **{
            "train.optimizer": "sgd",
            "train.momentum": 0.0,
            "train.weight-decay": 0.0,
            "train.clip-norm": 2.0,
            "train.max-steps": 1,
        }
    )
    resident, start = make_resident(), weights(make_resident())

    run(resident, config, rule=Huge, epochs=1)

    moved = torch.cat([(weights(resident)[n] - start[n]).flatten() for n in start])
    assert float(moved.norm()) == pytest.approx(0.05 * 2.0, rel=1e-3)


@pytest.mark.parametrize(("value", "word"), [(float("nan"), "NaN"), (float("inf"), "infinite")])
def test_a_non_finite_loss_is_named_and_leaves_the_model_usable(value, word):
    class Poison(Task):
        calls = 0

        def loss(self, model, batch):
            self.calls += 1
            return super().loss(model, batch) * (value if self.calls == 4 else 1.0)

    resident = make_resident()
    resident.task = Poison()

    with pytest.raises(TrainingError, match=f"became {word} at step 4 of 6.*train.learning-rate"):
        run(resident, make_config())

    assert not resident.model.training
    assert all(p.requires_grad and p.grad is None for _, p in resident.parameters.named_arrays())


def test_steps_are_limited_and_reported():
    reports = []
    config = make_config(**{"train.max-steps": 2})

    result = run(
        make_resident(),
        config,
        epochs=1,
        report=lambda step, steps, _: reports.append((step, steps)),
    )

    assert result.steps == 2
    assert reports == [(1, 2), (2, 2)]
