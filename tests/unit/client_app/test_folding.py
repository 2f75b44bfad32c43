"""A delta inside the base weights: the same function as beside them, and no trace of it after."""

import numpy as np
import pytest
import torch
from tiny_families import save_family

from client_app.folding import Folding
from client_app.models import load_resident
from fedapp.adapter import Adapter, LoraPair
from fedapp.config import RunConfig
from fedapp.errors import UpdateRefused

LABELS = ["no", "yes"]
TEXTS = ["no chest pain", "typical angina , 63 years , male", "x"]


def make(tmp_path, family):
    base, targets = save_family(family, tmp_path / family)
    flat = {"model.source": str(base), "lora.rank": 3, "lora.targets": targets}
    resident = load_resident(RunConfig.from_flat(flat), LABELS)
    resident.parameters.load(noise(resident.parameters.read(), 0.2))
    return resident


def noise(adapter, size, seed=0):
    rng = np.random.default_rng(seed)
    return adapter.map(lambda _, x: (size * rng.standard_normal(x.shape)).astype(np.float32))


def delta_of(resident, rank=7, seed=1):
    """A delta of another rank and scaling than the live pairs'."""
    rng = np.random.default_rng(seed)
    return Adapter(
        {
            name: LoraPair(
                (0.2 * rng.standard_normal((layer.out_features, rank))).astype(np.float32),
                (0.2 * rng.standard_normal((rank, layer.in_features))).astype(np.float32),
                1.5,
            )
            for name, layer in resident.parameters.layers.items()
        }
    )


def logits(resident):
    task = resident.task
    items = task.prepare([{"text": text, "label": 0} for text in TEXTS])
    with torch.inference_mode():
        return task.output(resident.model, task.collate(items)).clone()


def weights(resident):
    return {name: p.detach().clone() for name, p in resident.model.named_parameters()}


def beside(resident, delta):
    """The oracle: every layer's output plus ``s B A x``, without the product of B and A."""
    hooks = []
    for name, pair in delta.pairs.items():
        b, a = torch.tensor(pair.b_mr), torch.tensor(pair.a_rn)

        def add(module, inputs, output, b=b, a=a, s=pair.scaling):
            return output + s * ((inputs[0] @ a.T) @ b.T)

        hooks.append(resident.parameters.layers[name].register_forward_hook(add))
    try:
        return logits(resident)
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("family", ["bert", "gpt2", "distilbert", "llama"])
def test_folded_and_stacked_are_one_function_and_leave_no_trace(tmp_path, family):
    resident = make(tmp_path, family)
    plain, before, delta = logits(resident), weights(resident), delta_of(resident)

    with Folding(resident) as folding:
        folding.apply(delta)
        folded = logits(resident)
    stacked = beside(resident, delta)

    scale = float(stacked.abs().max())
    assert float((folded - stacked).abs().max()) < 1e-5 * max(1.0, scale)
    assert float((folded - plain).abs().max()) > 1e-3
    assert all(torch.equal(before[name], now) for name, now in weights(resident).items())
    assert torch.equal(logits(resident), plain)


def test_the_result_does_not_depend_on_what_was_folded_before(tmp_path):
    resident = make(tmp_path, "bert")
    first, second = delta_of(resident, seed=1), delta_of(resident, rank=2, seed=2)

    with Folding(resident) as folding:
        folding.apply(second)
        direct = logits(resident)
    with Folding(resident) as folding:
        folding.apply(first)
        folding.apply(second)
        detour = logits(resident)
        folding.apply(None)
        nothing = logits(resident)

    assert torch.equal(direct, detour)
    assert torch.equal(nothing, logits(resident))


def test_a_base_is_restored_after_an_error(tmp_path):
    resident = make(tmp_path, "bert")
    before = weights(resident)

    def fail():
        with Folding(resident) as folding:
            folding.apply(delta_of(resident))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert all(torch.equal(before[name], now) for name, now in weights(resident).items())


def test_other_lora_settings_on_the_same_base_see_the_pristine_weights_afterwards(tmp_path):
    base, targets = save_family("bert", tmp_path / "bert")
    flat = {"model.source": str(base), "lora.targets": targets}
    one, two = (
        load_resident(RunConfig.from_flat({**flat, "lora.rank": rank}), LABELS) for rank in (2, 5)
    )
    plain = logits(two)
    with Folding(one) as folding:
        folding.apply(delta_of(one))
    assert torch.equal(logits(two), plain)


def test_a_quantised_weight_is_not_touched_but_gets_a_second_pair(tmp_path, monkeypatch):
    """No 4-bit kernel on a CPU: the layers are told to be quantised."""
    resident = make(tmp_path, "bert")
    plain, before, delta = logits(resident), weights(resident), delta_of(resident)
    with Folding(resident) as folding:
        folding.apply(delta)
        folded = logits(resident)
    monkeypatch.setattr("client_app.folding._can_fold", lambda weight: False)

    with Folding(resident) as folding:
        folding.apply(delta)
        assert all(torch.equal(before[name], now) for name, now in weights(resident).items())
        stacked = logits(resident)

    torch.testing.assert_close(stacked, folded, rtol=1e-5, atol=1e-5)
    assert torch.equal(logits(resident), plain)


def test_gradients_are_those_beside_a_second_pair(tmp_path, monkeypatch):
    resident = make(tmp_path, "bert")
    delta = delta_of(resident)

    def gradients():
        task = resident.task
        items = task.prepare([{"text": text, "label": n % 2} for n, text in enumerate(TEXTS)])
        task.loss(resident.model, task.collate(items)).backward()
        found = {name: p.grad.clone() for name, p in resident.parameters.named_arrays()}
        resident.model.zero_grad(set_to_none=True)
        return found

    with Folding(resident) as folding:
        folding.apply(delta)
        folded = gradients()
    monkeypatch.setattr("client_app.folding._can_fold", lambda weight: False)
    with Folding(resident) as folding:
        folding.apply(delta)
        stacked = gradients()

    for name, gradient in folded.items():
        torch.testing.assert_close(gradient, stacked[name], rtol=1e-4, atol=1e-6)


def test_a_delta_of_another_model_is_refused_and_changes_nothing(tmp_path):
    resident = make(tmp_path, "bert")
    before, good = weights(resident), delta_of(resident)
    name, pair = next(iter(good.pairs.items()))
    others = dict(good.pairs)
    del others[name]
    wide = LoraPair(pair.b_mr, np.zeros((pair.rank, 31), np.float32), 1.0)
    bad = {
        f"lacks pair '{name}'": Adapter(others),
        "unknown pair 'x.y'": Adapter({**good.pairs, "x.y": pair}),
        "32 x 31 matrix, expected 32 x 32": Adapter({**good.pairs, name: wide}),
        "holds the tensor 'classifier.bias'": Adapter(good.pairs, {"classifier.bias": np.ones(2)}),
    }
    for words, delta in bad.items():
        with Folding(resident) as folding, pytest.raises(UpdateRefused, match=words):
            folding.apply(delta)
        assert all(torch.equal(before[name], now) for name, now in weights(resident).items())
