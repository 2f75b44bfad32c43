import math
import warnings

import numpy as np
import pytest
import torch
from peft import get_peft_model_state_dict

from client_app.models import load_resident
from fedapp.adapter import Adapter, LoraPair
from fedapp.config import RunConfig
from fedapp.errors import UpdateRefused
from fedapp.peft_names import to_peft

LABELS = ["no", "yes", "maybe"]
CONFIG = RunConfig.from_flat({"model.source": "embedded:tiny-encoder", "lora.rank": 4})


@pytest.fixture
def parameters():
    parameters = load_resident(CONFIG, LABELS).parameters
    parameters.load(parameters.initial(0))
    return parameters


def noise(adapter, seed=0):
    rng = np.random.default_rng(seed)
    return adapter.map(lambda _, array: rng.standard_normal(array.shape).astype(np.float32))


def test_the_layout_is_every_pair_and_the_head(parameters):
    names = [
        f"bert.encoder.layer.{n}.attention.self.{p}" for n in (0, 1) for p in ("query", "value")
    ]
    assert list(parameters.pairs) == names
    assert list(parameters.tensors) == ["classifier.bias", "classifier.weight"]
    b_mr, a_rn, scaling = parameters.pairs[names[0]]
    assert (tuple(b_mr.shape), tuple(a_rn.shape), scaling) == ((64, 4), (4, 64), 16 / 4)
    adapter = parameters.read()
    assert [name for name, _ in parameters.named_arrays()] == [name for name, _ in adapter.arrays()]
    assert adapter.size == 4 * 2 * 4 * 64 + 3 * 64 + 3


def test_they_are_all_that_trains(parameters):
    model = load_resident(CONFIG, LABELS).model
    trainable = {id(p) for p in model.parameters() if p.requires_grad}
    assert trainable == {id(p) for _, p in parameters.named_arrays()}


def test_load_copies_bits_into_the_same_parameters(parameters):
    before = [id(parameter) for _, parameter in parameters.named_arrays()]
    adapter = noise(parameters.read())
    for _, array in adapter.arrays():
        array.flags.writeable = False  # as decoded from the wire
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parameters.load(adapter)
    assert [id(parameter) for _, parameter in parameters.named_arrays()] == before
    assert parameters.read().digest() == adapter.digest()
    stored = get_peft_model_state_dict(load_resident(CONFIG, LABELS).model)
    for name, pair in adapter.pairs.items():
        np.testing.assert_array_equal(stored[to_peft(name, "a")], pair.a_rn)
        np.testing.assert_array_equal(stored[to_peft(name, "b")], pair.b_mr)


def test_read_is_a_copy(parameters):
    first = parameters.read()
    digest = first.digest()
    parameters.load(noise(first))
    assert first.digest() == digest


def test_the_initial_adapter_does_not_change_the_model(parameters):
    parameters.load(noise(parameters.read()))
    digest = parameters.read().digest()
    parameters.initial(3)
    assert parameters.read().digest() == digest


def test_the_initial_adapter_is_distributed_as_in_peft_and_transformers():
    config = RunConfig.from_flat({"lora.rank": 64, "lora.targets": "dense"})
    adapter = load_resident(config, [str(label) for label in range(200)]).parameters.initial(0)
    for pair in adapter.pairs.values():
        bound = 1 / math.sqrt(pair.a_rn.shape[1])  # kaiming-uniform, a = sqrt(5)
        assert not pair.b_mr.any()
        assert 0.99 * bound < np.abs(pair.a_rn).max() <= bound
        assert pair.a_rn.std() == pytest.approx(bound / math.sqrt(3), rel=0.02)
        assert abs(pair.a_rn.mean()) < 5 * bound / math.sqrt(3 * pair.a_rn.size)
    head = adapter.tensors["classifier.weight"]
    assert head.std() == pytest.approx(0.02, rel=0.02)
    assert not adapter.tensors["classifier.bias"].any()
    first, second = list(adapter.pairs.values())[:2]
    assert not np.array_equal(first.a_rn, second.a_rn)


def test_it_depends_on_the_seed(parameters):
    # Not on the process: see test_models.test_another_process_is_silent_and_agrees.
    assert parameters.initial(5).digest() == parameters.initial(5).digest()
    assert parameters.initial(5).digest() != parameters.initial(6).digest()


@pytest.mark.parametrize(
    ("change", "reason", "sentence"),
    [
        (lambda a: Adapter({}, a.tensors), "wrong-layout", "lacks pair 'bert.*has 4 pairs.* 0"),
        (
            lambda a: Adapter(a.pairs, {**a.tensors, "z": a.tensors["classifier.bias"]}),
            "wrong-layout",
            "has an unknown tensor 'z'",
        ),
        (
            lambda a: Adapter(
                {n: LoraPair(p.b_mr, p.a_rn, 1.0) for n, p in a.pairs.items()}, a.tensors
            ),
            "wrong-layout",
            r"has scaling 1\.0, expected 4\.0",
        ),
        (
            lambda a: Adapter(a.pairs, {n: t[:2] for n, t in a.tensors.items()}),
            "wrong-shape",
            r"'classifier\.bias' has shape \(2,\), expected \(3,\)",
        ),
    ],
    ids=["lacking", "unknown", "scaling", "shape"],
)
def test_an_adapter_of_another_layout_leaves_the_model_alone(parameters, change, reason, sentence):
    digest = parameters.read().digest()
    with pytest.raises(UpdateRefused, match=sentence) as caught:
        parameters.load(change(noise(parameters.read())))
    assert caught.value.reason == reason
    assert parameters.read().digest() == digest


def test_a_swap_is_what_the_forward_pass_sees(parameters):
    resident = load_resident(CONFIG, LABELS)
    batch = resident.task.collate(resident.task.prepare([{"text": "chest pain", "label": 0}]))
    with torch.inference_mode():
        first = resident.task.output(resident.model, batch)
        parameters.load(noise(parameters.read()))
        second = resident.task.output(resident.model, batch)
        parameters.load(parameters.initial(0))
        third = resident.task.output(resident.model, batch)
    assert torch.equal(first, third)
    assert not torch.allclose(first, second)
