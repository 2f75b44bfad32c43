"""Who may join is made what the folder says; a real SuperLink is asked in the integration tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from peers import free_port
from provisioning import Coordinator

from fedapp.errors import ProvisionError
from fedapp.provision import enrol as module
from fedapp.provision.enrol import Enrolled, enrol, member_keys


class SuperLink:
    """What Flower keeps of a node: its key, for ever, and whether it may join."""

    def __init__(self) -> None:
        self.known: dict[bytes, tuple[str, str, int]] = {}

    def __call__(self, *_: object) -> Any:
        return self

    def __enter__(self) -> SuperLink:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def nodes(self) -> dict[bytes, tuple[str, str, int]]:
        return dict(self.known)

    def register(self, name: str, key: bytes) -> None:
        assert key not in self.known, "Flower refuses a key that it knows"
        self.known[key] = (name, "registered", len(self.known) + 1)

    def unregister(self, node: int) -> None:
        for key, (name, _, number) in self.known.items():
            if number == node:
                self.known[key] = (name, "unregistered", number)

    @property
    def status(self) -> dict[str, str]:
        return {name: status for name, status, _ in self.known.values()}


@pytest.fixture
def superlink(monkeypatch: pytest.MonkeyPatch) -> SuperLink:
    one = SuperLink()
    monkeypatch.setattr(module, "_Control", one)
    return one


@pytest.fixture
def coordinator(tmp_path: Path) -> Coordinator:
    made = Coordinator(tmp_path, ["Basel", "Bern"])
    made.complete()
    return made


def revoke(coordinator: Coordinator, *names: str) -> None:
    coordinator.revoked = set(names)
    coordinator.write()
    coordinator.provision()


def test_present_members_are_registered_once(
    coordinator: Coordinator, superlink: SuperLink
) -> None:
    assert enrol(coordinator.folder, "x:1") == Enrolled(("Basel", "Bern"), (), ())
    assert enrol(coordinator.folder, "x:1") == Enrolled((), ("Basel", "Bern"), ())


def test_a_member_without_a_request_is_left_out(tmp_path: Path, superlink: SuperLink) -> None:
    coordinator = Coordinator(tmp_path, ["Basel", "Bern"])
    coordinator.provision(coordinator.keys("Basel").request)
    assert enrol(coordinator.folder, "x:1") == Enrolled(("Basel",), (), ())


def test_who_has_left_and_who_was_never_a_member_are_unregistered(
    coordinator: Coordinator, superlink: SuperLink
) -> None:
    superlink.register("", b"somebody's key")
    enrol(coordinator.folder, "x:1")
    assert superlink.known[b"somebody's key"][1] == "unregistered"
    revoke(coordinator, "Bern")

    assert enrol(coordinator.folder, "x:1") == Enrolled((), ("Basel",), ("Bern",))
    assert superlink.status["Bern"] == "unregistered"
    assert enrol(coordinator.folder, "x:1").removed == ()


def test_new_keys_take_the_place_of_the_old(coordinator: Coordinator, superlink: SuperLink) -> None:
    enrol(coordinator.folder, "x:1")
    (coordinator.root / "Bern").rename(coordinator.root / "old")
    coordinator.provision(coordinator.keys("Bern").request, renew=["Bern"])

    assert enrol(coordinator.folder, "x:1") == Enrolled(("Bern",), ("Basel",), ("Bern",))


def test_one_that_cannot_come_back_does_not_keep_the_others_from_leaving(
    coordinator: Coordinator, superlink: SuperLink
) -> None:
    enrol(coordinator.folder, "x:1")
    revoke(coordinator, "Bern")
    enrol(coordinator.folder, "x:1")
    revoke(coordinator, "Basel")  # and Bern is back, with its old key

    with pytest.raises(ProvisionError, match="the key of Bern was unregistered"):
        enrol(coordinator.folder, "x:1")
    assert superlink.status == {"Basel": "unregistered", "Bern": "unregistered"}


def test_an_empty_folder_unregisters_nobody(
    coordinator: Coordinator, superlink: SuperLink, tmp_path: Path
) -> None:
    enrol(coordinator.folder, "x:1")
    other = Coordinator(tmp_path / "other")
    other.provision()

    with pytest.raises(ProvisionError, match=r"has no member .* so nothing was done"):
        enrol(other.folder, "x:1")
    assert superlink.status == {"Basel": "registered", "Bern": "registered"}


def test_a_file_that_is_no_key_is_named(coordinator: Coordinator) -> None:
    (coordinator.folder.member("Bern") / "supernode.pub").write_text("ssh-rsa AAAA\n")
    with pytest.raises(ProvisionError, match=r"supernode.pub is no SuperNode's public key"):
        member_keys(coordinator.folder)


def test_a_superlink_that_is_not_there_is_a_sentence(coordinator: Coordinator) -> None:
    with pytest.raises(ProvisionError, match=r"cannot be reached: .* is it running"):
        enrol(coordinator.folder, f"127.0.0.1:{free_port()}")
