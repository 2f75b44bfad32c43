"""The last two layers by the order of modules: heads, convolutions, normalisations between."""

from client_app.layers import last_layers, trained_shapes
from client_app.models import load_resident
from fedapp.attacks import HiddenLayer
from fedapp.config import RunConfig

CNN = [
    ("conv1.weight", (8, 1, 3, 3)),
    ("conv1.bias", (8,)),
    ("norm.weight", (8,)),
    ("norm.bias", (8,)),
    ("fc.weight", (10, 8 * 49)),
    ("fc.bias", (10,)),
]


def test_a_normalisation_belongs_to_the_layer_before():
    head, hidden = last_layers(CNN)

    assert head == ("fc.weight", "fc.bias")
    assert hidden == HiddenLayer(
        ("conv1.weight", "conv1.bias", "norm.weight", "norm.bias"), ("fc.weight",)
    )


def test_a_head_of_two_layers():
    head, hidden = last_layers([("a.w", (5, 7)), ("a.b", (5,)), ("b.w", (2, 5)), ("b.b", (2,))])

    assert head == ("b.w", "b.b")
    assert hidden == HiddenLayer(("a.w", "a.b"), ("b.w",))


def test_where_there_is_no_such_layer():
    assert last_layers([]) == ((), None)
    assert last_layers([("a.b", (5,))]) == ((), None)
    assert last_layers(CNN[4:]) == (("fc.weight", "fc.bias"), None)
    assert last_layers([("a.w", (5, 7)), ("b.w", (2, 6))]) == (("b.w",), None)


def test_the_head_of_the_tiny_encoder():
    config = RunConfig.from_flat({"model.source": "embedded:tiny-encoder", "lora.targets": "query"})
    resident = load_resident(config, ["healthy", "ill"])

    head, _ = last_layers(trained_shapes(resident))

    assert sorted(head) == ["classifier.bias", "classifier.weight"]


def test_a_network_that_is_trained_whole():
    config = RunConfig.from_flat(
        {
            "model.source": "embedded:conv4",
            "model.task": "image-classification",
            "model.trainable": "all",
            "method": "fedavg",
        }
    )
    resident = load_resident(config, list("0123456789"))

    head, hidden = last_layers(trained_shapes(resident))

    sizes = {name: tensor.shape for name, tensor in resident.parameters.tensors.items()}
    assert {name: len(sizes[name]) for name in head} == {"head.bias": 1, "head.weight": 2}
    assert hidden is not None
    assert {sizes[name][0] for name in hidden.produced_by} == {128}
    assert hidden.read_by == ("head.weight",)
