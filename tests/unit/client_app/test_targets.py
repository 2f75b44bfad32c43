import pytest
from torch import nn

from client_app.targets import target_layers
from fedapp.errors import ConfigError


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {"query": nn.Linear(4, 4), "value": nn.Linear(4, 4), "norm": nn.LayerNorm(4)}
            )
            for _ in range(2)
        )
        self.lm_head = nn.Linear(4, 7, bias=False)
        self.lm_head.weight = self.embedding.weight
        self.twin = nn.Linear(4, 4)
        self.again = self.twin  # one module under two names
        self.copy = nn.Linear(4, 4)
        self.copy_of_it = nn.Linear(4, 4)
        self.copy_of_it.weight = nn.Parameter(self.copy.weight.data)  # the same numbers
        self.classifier = nn.ModuleDict({"dense": nn.Linear(4, 4), "value": nn.Linear(4, 2)})


def chosen(*targets):
    return sorted(target_layers(Model(), targets, ["classifier"]))


def test_a_name_selects_by_the_end_of_the_path_and_never_inside_the_head():
    assert chosen("value") == ["layers.0.value", "layers.1.value"]
    assert chosen("layers.1.query", "value") == [
        "layers.0.value",
        "layers.1.query",
        "layers.1.value",
    ]


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("quary", "no such layer; name linear layers such as query"),
        ("q_proj", "no such layer; name linear layers such as .*query, value"),
        ("uery", "'uery', but the model has no such layer"),
        ("lm_head", "weight of 'lm_head' is tied .* name linear layers such as query, value$"),
        ("embedding", "weight of 'embedding' is tied"),
        ("twin", "weight of 'twin' is tied"),
        ("again", "weight of 'again' is tied"),
        ("copy", "weight of 'copy' is tied"),
        ("copy_of_it", "weight of 'copy_of_it' is tied"),
        ("norm", r"'layers\.0\.norm' is a LayerNorm and only linear"),
        ("layers", "is a ModuleList and only linear"),
        ("classifier", "is the head"),
        ("dense", "is the head"),
    ],
)
def test_what_cannot_have_a_pair_is_refused(target, sentence):
    with pytest.raises(ConfigError, match=sentence):
        chosen("query", target)


def test_every_name_must_match_not_just_one():
    with pytest.raises(ConfigError, match="'valu'"):
        chosen("query", "valu")
