"""Mistakes in the consortium's file: one sentence each, before anything is made."""

from __future__ import annotations

import json

import pytest
from provisioning import RUN, Coordinator

from fedapp.errors import ConfigError


@pytest.mark.parametrize(
    "name",
    ["../x", "a/b", "a\\b", ".", "..", ".hidden", "-x", "x ", " x", "a\x00b", "a\nb", "con:",
     "x" * 65, "a$b", 'a"b', "a'b", "`a`", "Zu\u0308rich", ""],
)  # fmt: skip
def test_a_name_that_could_be_a_path_or_a_command_is_refused(
    coordinator: Coordinator, name: str
) -> None:
    text = coordinator.file.read_text(encoding="utf-8")
    coordinator.file.write_text(text.replace('"Basel"', json.dumps(name)), encoding="utf-8")

    with pytest.raises(ConfigError, match=r"members\.0\.name"):
        coordinator.provision()
    assert not coordinator.folder.path.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("Zürich", "BASEL"), "two members are called 'Basel' and 'BASEL'"),
        (("Zürich", "Basel"), "two members are called 'Basel' and 'Basel'"),
        (("fl.test:8000", "fl.test"), "expected HOST:PORT"),
        (("fl.test:8000", "https://fl.test:8000"), "expected HOST:PORT"),
        (("fl.test:8000", "*.test:8000"), "coordinator.address"),
        (("fl.test:8000", "FL.test:8000"), "small letters"),
        (("fl.test:8000", "1.2.3:8000"), "a DNS name"),
        (("fl.test:8000", "x.peer.fedapp.internal:1"), "are those of the sites"),
        (("[coordinator]", "[certificates]\ndays = 30\n[coordinator]"), "must be less than days"),
        (("[coordinator]", "[certificates]\ndays = 9999\n[coordinator]"), "certificates.days"),
        (("[coordinator]", "[coordinator]\nname = 1"), "did you mean 'names'?"),
        (("revoked = false", "revokd = false"), "did you mean 'revoked'?"),
        (("[coordinator]", "[cordinator]"), "did you mean 'coordinator'?"),
        (("[coordinator]", '[peers]\nrun = "x"\n[coordinator]'), "peers.run"),
        (("[coordinator]", '[images]\ncore = "x; rm"\n[coordinator]'), "images.core"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_is_one_sentence(
    coordinator: Coordinator, change: tuple[str, str], words: str
) -> None:
    text = coordinator.file.read_text(encoding="utf-8").replace(*change)
    coordinator.file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        _ = coordinator.config
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_members_that_call_each_other_need_addresses(coordinator: Coordinator) -> None:
    coordinator.extra = f'[peers]\nrun = "{RUN}"\n'
    coordinator.write()
    text = coordinator.file.read_text(encoding="utf-8").replace("peer-1.test:9443", "")
    coordinator.file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="'Zürich' has no address, expected HOST:PORT"):
        _ = coordinator.config
