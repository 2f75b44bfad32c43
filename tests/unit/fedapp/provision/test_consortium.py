"""The coordinator's commands on files: made once, never overwritten, the same again is nothing."""

from __future__ import annotations

import os
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from provisioning import RUN, Coordinator

from fedapp.certificates import Issuer, new_issuer
from fedapp.errors import IdentityError, ProvisionError
from fedapp.gossip.identity import Identity
from fedapp.provision import keys as keys_
from fedapp.provision.keys import read_peer_key


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_a_signed_member_is_who_the_gossip_layer_wants(coordinator: Coordinator) -> None:
    coordinator.complete()

    for name in coordinator.names:
        kit = coordinator.folder.kit(name)
        identity = Identity.load(
            kit / "certificate.pem",
            coordinator.root / name / "peer.key",
            kit / "authority.pem",
            name=name,
        )
        assert identity.name == name


def test_private_keys_are_for_their_owner_and_are_in_no_kit(coordinator: Coordinator) -> None:
    old = os.umask(0)
    try:
        coordinator.complete()
    finally:
        os.umask(old)

    for name, (mode, data) in coordinator.snapshot().items():
        secret = name.endswith((".key", ".secret"))
        assert (b"PRIVATE" in data) <= secret
        assert (mode == 0o600) == secret, name
        assert not (secret and "kits" in name)
    assert (coordinator.folder.path / "secrets").stat().st_mode & 0o777 == 0o700
    assert (coordinator.root / "Basel").stat().st_mode & 0o777 == 0o700


def test_the_same_again_touches_no_file(coordinator: Coordinator) -> None:
    coordinator.complete()
    before = coordinator.snapshot()
    times = {p: p.stat().st_mtime_ns for p in coordinator.root.rglob("*")}

    again = coordinator.complete()

    assert coordinator.snapshot() == before
    assert {p: p.stat().st_mtime_ns for p in coordinator.root.rglob("*")} == times
    assert not again.new_authority
    assert not again.superlink[0]
    assert not any(member.issued for member in again.members.values() if member)
    assert again.kits == ()


def test_kits_are_the_same_bytes_for_the_same_consortium(coordinator: Coordinator) -> None:
    coordinator.complete()
    before = coordinator.snapshot()
    shutil.rmtree(coordinator.folder.path / "kits")

    assert coordinator.provision().kits == ("Basel", "Zürich")
    assert coordinator.snapshot() == before


def test_the_superlinks_certificate_has_every_name_and_address(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path, address="[2001:db8::1]:443")
    coordinator.provision()
    assert "2001:db8::1" in coordinator.config.coordinator.hosts()
    text = coordinator.file.read_text(encoding="utf-8")
    more = text.replace("[coordinator]", '[coordinator]\nnames = ["fl.example.org", "10.1.2.3"]')
    coordinator.file.write_text(more, encoding="utf-8")

    assert coordinator.provision().superlink[0], "new names need a new certificate"

    own = certificate(coordinator.folder.superlink)
    found = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(name.value) for name in found} == {
        "2001:db8::1", "fl.example.org", "10.1.2.3", "127.0.0.1",
        "localhost", "superlink", "coordinator",
    }  # fmt: skip
    own.verify_directly_issued_by(certificate(coordinator.folder.authority))


def test_a_member_cannot_pass_for_the_superlink_nor_the_superlink_for_a_member(
    coordinator: Coordinator,
) -> None:
    coordinator.complete()
    member = certificate(coordinator.folder.kit("Basel") / "certificate.pem")
    names = member.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [name.value.endswith(".peer.fedapp.internal") for name in names] == [True]
    folder = coordinator.folder
    with pytest.raises(IdentityError, match="must have the one alternative name"):
        Identity.load(folder.superlink, folder.superlink_key, folder.authority)


def test_what_a_certificate_may_do_is_the_authoritys_decision(coordinator: Coordinator) -> None:
    coordinator.complete()
    root = certificate(coordinator.folder.authority)
    limits = root.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (limits.critical, limits.value.ca, limits.value.path_length) == (True, True, 0)
    for path in (coordinator.folder.superlink, coordinator.folder.kit("Basel") / "certificate.pem"):
        own = certificate(path).extensions.get_extension_for_class(x509.BasicConstraints)
        assert (own.critical, own.value.ca) == (True, False)


def test_a_request_of_somebody_else_is_refused_and_nothing_is_signed(
    coordinator: Coordinator,
) -> None:
    coordinator.provision()
    before = coordinator.snapshot()
    keys_.make_keys(coordinator.root / "x", "Bern")

    with pytest.raises(ProvisionError, match=r"'Bern' is no present member.*Basel, Zürich"):
        coordinator.provision(coordinator.root / "x" / "request.pem")

    shutil.rmtree(coordinator.root / "x")
    assert coordinator.snapshot() == before


def test_other_keys_need_to_be_asked_for(coordinator: Coordinator) -> None:
    coordinator.complete()
    old = coordinator.folder.kit("Basel") / "certificate.pem"
    first = certificate(old).public_key()
    shutil.rmtree(coordinator.root / "Basel")
    new = coordinator.keys("Basel").request

    with pytest.raises(
        ProvisionError, match=r"'Basel' has other keys already .* --renew \"Basel\""
    ):
        coordinator.provision(new)
    assert certificate(old).public_key() == first

    coordinator.provision(new, renew=["Basel"])
    assert certificate(old).public_key() != first
    assert (
        certificate(old).public_key()
        == read_peer_key(coordinator.root / "Basel/peer.key").public_key()
    )


def test_two_members_cannot_share_keys(coordinator: Coordinator) -> None:
    coordinator.complete()
    coordinator.names += ["Bern"]
    coordinator.write()
    shutil.copytree(coordinator.root / "Basel", coordinator.root / "Bern")

    with pytest.raises(ProvisionError, match="'Bern' is for a key of 'Basel'"):
        coordinator.provision(coordinator.keys("Bern").request)


def test_the_fingerprint_said_by_telephone_must_be_that_of_the_request(
    coordinator: Coordinator,
) -> None:
    made = coordinator.keys("Basel")
    wrong = made.fingerprint.replace(
        made.fingerprint[0], "0" if made.fingerprint[0] != "0" else "1"
    )

    with pytest.raises(ProvisionError, match=r"has the fingerprint .* do not sign it"):
        coordinator.provision(made.request, fingerprints=[wrong])
    with pytest.raises(ProvisionError, match="one --fingerprint for each --sign, got 2 for 1"):
        coordinator.provision(made.request, fingerprints=[made.fingerprint] * 2)
    with pytest.raises(ProvisionError, match=r"of 'Basel' came without its fingerprint"):
        coordinator.provision(made.request, unseen=False)
    with pytest.raises(ProvisionError, match="--fingerprint or --unseen, got both"):
        coordinator.provision(made.request, fingerprints=[made.fingerprint], unseen=True)
    assert not list(coordinator.root.rglob("certificate.pem"))
    said = made.fingerprint.lower().replace(" ", ":")
    assert coordinator.provision(made.request, fingerprints=[said]).members["Basel"].issued


def test_a_member_that_comes_later_changes_nothing_of_the_others(coordinator: Coordinator) -> None:
    coordinator.complete()
    before = coordinator.snapshot()
    coordinator.names.append("Bern")
    coordinator.write()

    told = coordinator.provision()
    done = coordinator.provision(coordinator.keys("Bern").request)

    assert (told.members["Bern"], told.kits) == (None, ("Bern",))
    assert done.members["Bern"] is not None
    assert done.members["Bern"].issued
    assert not done.members["Basel"].issued  # type: ignore[union-attr]
    after = coordinator.snapshot()
    changed = {name for name, held in before.items() if after[name] != held}
    assert changed == {"consortium.toml"}
    assert {name.split("/")[-2] for name in after.keys() - before.keys()} == {"Bern"}


def test_who_has_left_loses_certificate_kit_and_enrolment(coordinator: Coordinator) -> None:
    coordinator.extra = f'[peers]\nrun = "{RUN}"\n'
    coordinator.write()
    coordinator.complete()
    others = coordinator.folder.kit("Basel") / "peers.toml"
    assert "Zürich" in others.read_text(encoding="utf-8")
    coordinator.revoked = {"Zürich"}
    coordinator.write()

    done = coordinator.provision()

    assert done.gone == ("Zürich",)
    assert done.kits == ("Basel",)
    assert not coordinator.folder.kit("Zürich").exists()
    left = {path.name for path in coordinator.folder.member("Zürich").iterdir()}
    assert left == {"request.pem"}, "the request stays, as a record"
    assert "Zürich" not in others.read_text(encoding="utf-8")
    with pytest.raises(ProvisionError, match="'Zürich' is no present member"):
        coordinator.provision(coordinator.root / "Zürich/request.pem")
    with pytest.raises(ProvisionError, match="--renew: 'Zürich' is no present member"):
        coordinator.provision(renew=["Zürich"])


def test_a_member_taken_out_of_the_file_has_left(coordinator: Coordinator) -> None:
    coordinator.complete()
    coordinator.names.remove("Basel")
    coordinator.write()

    assert coordinator.provision().gone == ("Basel",)
    assert not (coordinator.folder.member("Basel") / "supernode.pub").exists()


def test_a_certificate_that_runs_out_is_issued_anew_for_the_same_key(
    coordinator: Coordinator,
) -> None:
    coordinator.extra = "[certificates]\ndays = 20\nrenew-before = 5\n"
    coordinator.write()
    first = coordinator.complete()
    path = coordinator.folder.kit("Basel") / "certificate.pem"
    before = certificate(path)
    assert not coordinator.provision().members["Basel"].issued

    coordinator.extra = "[certificates]\ndays = 365\nrenew-before = 30\n"
    coordinator.write()
    done = coordinator.provision()

    assert done.superlink[0]
    assert done.members["Basel"].issued
    assert done.members["Basel"].until > first.members["Basel"].until + timedelta(days=300)
    after = certificate(path)
    assert after.public_key() == before.public_key()
    assert after.serial_number != before.serial_number


def test_renew_issues_anew_what_it_names_alone(coordinator: Coordinator) -> None:
    coordinator.complete()

    done = coordinator.provision(renew=["Basel", "superlink"])

    assert done.superlink[0]
    assert (done.members["Basel"].issued, done.members["Zürich"].issued) == (True, False)
    assert done.kits == ("Basel",)


def test_no_certificate_outlives_the_authority(coordinator: Coordinator) -> None:
    coordinator.extra = "[certificates]\nauthority-days = 10\n"
    coordinator.write()
    coordinator.complete()
    root = certificate(coordinator.folder.authority)

    for path in (coordinator.folder.superlink, coordinator.folder.kit("Basel") / "certificate.pem"):
        assert certificate(path).not_valid_after_utc <= root.not_valid_after_utc
    assert not coordinator.provision().superlink[0], "what cannot be bettered is left alone"


def test_the_authoritys_key_may_be_kept_elsewhere_until_something_is_signed(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    coordinator.complete()
    key = coordinator.folder.authority_key
    away = tmp_path / "safe.key"
    key.rename(away)

    assert not coordinator.provision().superlink[0]
    with pytest.raises(ProvisionError, match=r"authority\.key is not there; bring it back"):
        coordinator.provision(renew=["Basel"])
    assert not key.exists(), "no second authority is made"

    away.rename(key)
    assert coordinator.provision(renew=["Basel"]).members["Basel"].issued


def test_the_key_of_another_authority_signs_nothing(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    coordinator.complete()
    other = Coordinator(tmp_path / "other")
    other.provision()
    shutil.copy2(other.folder.authority_key, coordinator.folder.authority_key)

    with pytest.raises(ProvisionError, match="does not belong to"):
        coordinator.provision(renew=["Basel"])


def test_a_folder_of_another_consortium_is_not_taken(coordinator: Coordinator) -> None:
    coordinator.provision()
    text = coordinator.file.read_text(encoding="utf-8").replace("Heart", "Lung")
    coordinator.file.write_text(text, encoding="utf-8")

    with pytest.raises(ProvisionError, match="authority of 'CN=Heart', expected 'CN=Lung'"):
        coordinator.provision()


@pytest.mark.parametrize("step", range(1, 12))
def test_a_kill_at_any_write_loses_no_key_and_the_next_time_completes_it(
    coordinator: Coordinator, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    count = 0
    real_link, real_replace = os.link, os.replace

    def strike(real):  # type: ignore[no-untyped-def]
        def call(*arguments, **named):  # type: ignore[no-untyped-def]
            nonlocal count
            count += 1
            if count == step:
                raise Killed
            return real(*arguments, **named)

        return call

    requests = [coordinator.keys(name).request for name in coordinator.names]
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", strike(real_link))
        patch.setattr(os, "replace", strike(real_replace))
        with pytest.raises(Killed):
            coordinator.provision(*requests)
    secret = {n: c for n, c in coordinator.snapshot().items() if n.endswith((".key", ".secret"))}

    coordinator.provision(*requests)

    assert secret.items() <= coordinator.snapshot().items()
    assert not [p for p in coordinator.root.rglob(".*.*") if p.is_file() and p.name != ".env"]
    before = coordinator.snapshot()
    coordinator.provision(*requests)
    assert coordinator.snapshot() == before


@pytest.mark.parametrize("file", ["authority.key", "superlink.key"])
def test_a_key_that_others_can_read_is_refused(coordinator: Coordinator, file: str) -> None:
    coordinator.provision()
    (coordinator.folder.path / "secrets" / file).chmod(0o640)

    with pytest.raises(IdentityError, match=rf"{file} can be read .*mode 0640, expected 0600"):
        coordinator.provision(renew=["superlink"])


def test_an_expired_authority_signs_nothing(coordinator: Coordinator) -> None:
    coordinator.provision()
    key = read_peer_key(coordinator.folder.authority_key)
    old = new_issuer("Heart", key, timedelta(seconds=-1)).certificate
    coordinator.folder.authority.write_bytes(old.public_bytes(serialization.Encoding.PEM))

    with pytest.raises(IdentityError, match=r"authority's certificate is valid from .* not now"):
        coordinator.provision()


def test_a_certificate_of_another_authority_is_replaced(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    coordinator.complete()
    other = Coordinator(tmp_path / "other")
    other.complete()
    for name in ("superlink.pem", "members/Basel/certificate.pem"):
        shutil.copy2(other.folder.path / name, coordinator.folder.path / name)

    done = coordinator.provision()

    assert done.superlink[0]
    assert done.members["Basel"].issued


def test_two_at_a_time_are_one_after_the_other(coordinator: Coordinator) -> None:
    coordinator.provision()
    with (
        coordinator.folder.held(),
        pytest.raises(ProvisionError, match="another `fedapp provision`"),
    ):
        coordinator.provision()


def test_a_full_folder_is_a_sentence_and_leaves_what_was(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.complete()
    before = coordinator.snapshot()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "disk")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        coordinator.provision(renew=["Basel", "superlink"])
    monkeypatch.undo()
    assert coordinator.snapshot() == before


def test_certificates_begin_a_little_earlier_for_clocks_that_are_behind(
    coordinator: Coordinator,
) -> None:
    coordinator.complete()
    start = certificate(coordinator.folder.superlink).not_valid_before_utc
    assert timedelta(minutes=55) < datetime.now(UTC) - start < timedelta(minutes=65)


def test_an_issuer_is_its_certificate_and_key(coordinator: Coordinator) -> None:
    coordinator.provision()
    key = read_peer_key(coordinator.folder.authority_key)
    issuer = Issuer(certificate(coordinator.folder.authority), key)
    own = issuer.site("Basel", key.public_key(), timedelta(days=1))
    assert own.issuer == issuer.certificate.subject
    assert own.not_valid_after_utc.timestamp() > time.time()
