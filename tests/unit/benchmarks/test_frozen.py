"""A BERT that is trained in its last layer: the same numbers with less work."""

import pytest
import torch

from benchmarks.frozen import train_last_layer
from client_app.models import forget_models, load_resident
from fedapp.config import RunConfig

TEXTS = ["a short note", "a note with a good many more words than the other two of them", "pain"]


@pytest.fixture
def make():
    """A fresh resident, whose pairs are at the layers of some names and do something."""

    def made(targets):
        forget_models()
        flat = {"model.source": "embedded:tiny-encoder", "lora.targets": targets}
        resident = load_resident(RunConfig.from_flat(flat), ["healthy", "ill"])
        resident.parameters.load(
            resident.parameters.initial(0).map(lambda name, array: array + 0.02)
        )
        return resident

    yield made
    forget_models()


def outputs(resident):
    task = resident.task
    batch = task.collate(task.prepare([{"text": text, "label": 0} for text in TEXTS]))
    loss = task.loss(resident.model, batch)
    loss.backward()
    gradients = [parameter.grad for _, parameter in resident.parameters.named_arrays()]
    return task.output(resident.model, batch).detach(), gradients


LAST = "layer.1.attention.self.query,layer.1.attention.self.value"


def test_outputs_and_gradients_are_those_of_the_whole_model(make):
    expected, gradients = outputs(make(LAST))
    resident = make(LAST)
    train_last_layer(resident.model)
    train_last_layer(resident.model)  # a second seed's federation

    found, ours = outputs(resident)

    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert len(ours) == len(gradients) > 4
    for one, other in zip(ours, gradients, strict=True):
        assert other.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    resident.model.train()
    assert torch.equal(outputs(resident)[0], found), "there is no dropout"


def test_what_lies_below_must_be_frozen(make):
    with pytest.raises(ValueError, match="below the last layer"):
        train_last_layer(make("query").model)
