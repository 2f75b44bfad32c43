import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from client_app.tasks.choice_pairs import PairTemplate, tokenise
from client_app.tasks.choice_room import room_for_context
from client_app.tiny_models import tiny_encoder
from fedapp.errors import DataError


def roberta_like(folder: Path) -> PreTrainedTokenizerFast:
    """The tiny vocabulary with RoBERTa's frame: <s> a </s></s> b </s>, one segment."""
    from tokenizers import Tokenizer
    from tokenizers.processors import RobertaProcessing

    shutil.copy(tiny_encoder() / "tokenizer.json", folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]")


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("texts", [("the patient", "chest pain"), ("a", "b c"), ("", "yes")])
def test_pairs_are_joined_as_the_tokenizer_does(
    kind: str, texts: tuple[str, str], tmp_path: Path
) -> None:
    bert = AutoTokenizer.from_pretrained(tiny_encoder())
    tokenizer = bert if kind == "bert" else roberta_like(tmp_path)

    ids, segments = PairTemplate.of(tokenizer).join(*tokenise(tokenizer, texts))

    expected = tokenizer(*texts, return_token_type_ids=True)
    assert ids == expected["input_ids"]
    assert segments == expected["token_type_ids"]
    assert PairTemplate.of(tokenizer).length == (3 if kind == "bert" else 4)


def test_every_text_gets_its_own_tokens_also_where_one_repeats() -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder())
    texts = ["pain", "no pain", "pain"]

    assert tokenise(tokenizer, texts) == [
        tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts
    ]
    assert tokenise(tokenizer, []) == []


def test_the_longest_choice_decides_what_is_left_for_the_context() -> None:
    assert room_for_context([[1], [1, 2, 3]], 3, 16) == 10


def test_a_choice_without_room_for_a_context_is_one_sentence() -> None:
    assert room_for_context([[1] * 12], 3, 16) == 1
    with pytest.raises(
        DataError,
        match=r"a choice of 13 tokens .*max-length 16, .* expected at most 12: raise model.max",
    ):
        room_for_context([[1], [1] * 13], 3, 16)
