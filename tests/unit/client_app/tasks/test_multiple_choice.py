from pathlib import Path

import pytest
from choice_models import choice_task, save_decoder
from tiny_families import save_family
from transformers import BertConfig, T5Config

from client_app.tasks.multiple_choice_decoder import DecoderChoice
from client_app.tasks.multiple_choice_encoder import EncoderChoice
from fedapp.errors import ConfigError


def test_the_kind_of_base_model_decides(tmp_path: Path) -> None:
    save_family("bert", tmp_path / "encoder")
    save_decoder("llama", tmp_path / "decoder")

    assert isinstance(choice_task(tmp_path / "encoder"), EncoderChoice)
    assert isinstance(choice_task(tmp_path / "decoder"), DecoderChoice)
    BertConfig(is_decoder=True).save_pretrained(tmp_path / "encoder")
    assert isinstance(choice_task(tmp_path / "encoder"), DecoderChoice)


def test_a_model_that_is_neither_is_one_sentence(tmp_path: Path) -> None:
    save_family("bert", tmp_path)
    T5Config().save_pretrained(tmp_path)

    with pytest.raises(ConfigError, match=r"model\.source small is of the kind 't5', which"):
        choice_task(tmp_path)


def test_a_config_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    save_family("bert", tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')

    with pytest.raises(ConfigError, match=r"its config\.json cannot be read"):
        choice_task(tmp_path)
