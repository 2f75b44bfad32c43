import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.peft_names import from_peft, to_peft

PATHS = st.lists(st.text("abloraABw_09", min_size=1, max_size=8), min_size=1).map(".".join)


@given(PATHS.filter(lambda path: "lora_" not in path), st.sampled_from(["a", "b", "tensor"]))
def test_names_survive_the_round_trip(name, part):
    assert from_peft(to_peft(name, part)) == (name, part)


def test_names_are_peft_s():
    assert to_peft("encoder.q", "b") == "base_model.model.encoder.q.lora_B.weight"


@pytest.mark.parametrize(
    "key",
    [
        "encoder.q.lora_A.weight",
        "base_model.model.q.lora_magnitude_vector",
        "base_model.model.q.lora_embedding_A",
        "base_model.model.q.lora_B.bias",
    ],
)
def test_foreign_keys_are_refused(key):
    with pytest.raises(ValueError, match="q"):
        from_peft(key)
