"""A site's own file: paths, records, models, and slips."""

import pytest

from fedapp.config import RunConfig
from fedapp.config_site import load_site_file
from fedapp.errors import ConfigError

WHOLE = """
name = "Bern"
socket = "run/site.sock"
[data]
source = "records.csv"
text-column = "note"
[models]
"consortium/encoder" = "models/encoder"
[policy]
methods = ["svd", "dysco"]
hours = "mon-fri 18:00-24:00, sat-sun 00:00-24:00"
time-zone = "Europe/Zurich"
"""


def write(folder, text=WHOLE):
    (folder / "site.toml").write_text(text)
    return folder / "site.toml"


def test_paths_are_beside_the_file(tmp_path):
    config = load_site_file(write(tmp_path))

    assert config.socket == tmp_path / "run" / "site.sock"
    assert config.state == tmp_path / "state"
    assert config.audit == tmp_path / "state" / "audit.jsonl"
    assert config.data["source"] == str(tmp_path / "records.csv")
    assert config.models == {"consortium/encoder": str(tmp_path / "models" / "encoder")}
    assert len(config.policy.spans()) == 2


def test_embedded_records_are_no_path(tmp_path):
    config = load_site_file(write(tmp_path, 'name = "x"\n[data]\nsource = "embedded:heart"\n'))

    assert config.data == {"source": "embedded:heart"}


def test_every_column_is_the_sites_own(tmp_path):
    columns = [key for key in RunConfig().to_flat() if key.startswith("data.") and "column" in key]
    asked = RunConfig.from_flat({key: "secret" for key in columns})
    own = "".join(f'{key.removeprefix("data.")} = "mine"\n' for key in columns)

    silent = load_site_file(write(tmp_path, 'name = "x"\n[data]\nsource = "embedded:heart"\n'))
    named = load_site_file(write(tmp_path, f'name = "x"\n[data]\nsource = "embedded:heart"\n{own}'))

    assert silent.localise(asked).data == RunConfig().data
    assert {named.localise(asked).to_flat()[key] for key in columns} == {"mine"}


def test_records_and_models_of_a_run_are_this_sites(tmp_path):
    config = load_site_file(write(tmp_path))
    run = RunConfig.from_flat(
        {"model.source": "consortium/encoder", "data.source": "/etc/passwd", "data.labels": "a,b"}
    )

    own = config.localise(run)

    assert own.data.source == str(tmp_path / "records.csv")
    assert own.data.text_column == "note"
    assert own.data.labels == ("a", "b")
    assert own.model.source == str(tmp_path / "models" / "encoder")
    assert config.localise(run.with_changes({"model.source": "hub/x"})).model.source == "hub/x"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[data]\nsource = "x"\n', "setting 'name' is missing; it is this site's name"),
        ('name = "x"\n', "setting 'data' is missing; it is source and columns"),
        ('name = "x"\n[data]\ntext-column = "a"\n', "source is missing"),
        ('name = "x"\n[data]\nsource = "a"\nlabels = "b"\n', "'labels' is none of"),
        (WHOLE + "max-rnak = 3\n", "unknown setting 'policy.max-rnak'; did you mean 'max-rank'?"),
        (WHOLE + "max-rank = 0\n", "setting 'policy.max-rank'"),
        (WHOLE.replace("Europe/Zurich", "Bern"), "expected a time zone such as Europe/Zurich"),
        (WHOLE.replace("mon-fri 18:00-24:00", "at night"), "expected days and times such as"),
        (WHOLE.replace("run/site.sock", "x" * 120), "which no unix socket's may have"),
        (
            WHOLE + '[check]\nsuperlink = "fl.example.org"\n',
            "setting 'check.superlink': expected HOST:PORT",
        ),
        (WHOLE + '[check]\nsuperlink = "fl.example.org:http"\n', "setting 'check.superlink'"),
        ("name = ", "cannot be read"),
    ],
)
def test_slips_are_named(tmp_path, text, expected):
    with pytest.raises(ConfigError) as caught:
        load_site_file(write(tmp_path, text))

    assert expected in str(caught.value)
    assert str(tmp_path / "site.toml") in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        load_site_file(tmp_path / "site.toml")


def test_a_peers_file_that_is_named_outside_is_taken_instead(tmp_path):
    own = write(tmp_path, 'name = "x"\npeer = "own.toml"\n[data]\nsource = "embedded:heart"\n')

    assert load_site_file(own).peer == tmp_path / "own.toml"
    assert load_site_file(own, tmp_path / "other.toml").peer == tmp_path / "other.toml"
    assert load_site_file(write(tmp_path)).peer is None
    assert load_site_file(write(tmp_path), tmp_path / "o.toml").peer == tmp_path / "o.toml"
