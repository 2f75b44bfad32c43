"""A consortium as its coordinator and hospitals make it, in one folder, by the product's code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedapp.config_provision import ConsortiumFile, read_consortium
from fedapp.provision.consortium import Provisioned, provision
from fedapp.provision.folder import Folder
from fedapp.provision.keys import MadeKeys, make_keys

RUN = "0123456789abcdef" * 2


class Coordinator:
    """A coordinator's folder, and below it one for each hospital's keys.

    Parameters
    ----------
    root : Path
    names : sequence of str
    address : str
        Of the SuperLink.
    """

    def __init__(
        self, root: Path, names: Sequence[str] = ("Basel", "Zürich"), address: str = "fl.test:8000"
    ) -> None:
        self.root, self.names, self.address = root, list(names), address
        self.file, self.folder = root / "consortium.toml", Folder(root / "provisioned")
        self.revoked: set[str] = set()
        self.extra = ""
        self.peers: dict[str, str] = {}  # where some of them listen
        self.write()

    def write(self) -> None:
        """Write the coordinator's file anew."""
        self.root.mkdir(parents=True, exist_ok=True)
        text = f'name = "Heart"\n{self.extra}\n[coordinator]\naddress = "{self.address}"\n'
        for place, name in enumerate(self.names):
            address = self.peers.get(name, f"peer-{place}.test:9443")
            text += f'[[members]]\nname = "{name}"\naddress = "{address}"\n'
            text += f"revoked = {str(name in self.revoked).lower()}\n"
        self.file.write_text(text, encoding="utf-8")

    @property
    def config(self) -> ConsortiumFile:
        return read_consortium(self.file)

    def keys(self, name: str) -> MadeKeys:
        """Make a hospital's keys, in a folder with its name."""
        return make_keys(self.root / name, name)

    def provision(self, *sign: Path, **options: object) -> Provisioned:
        """What the command does; nobody telephones unless ``fingerprints`` are given."""
        options.setdefault("unseen", "fingerprints" not in options)
        return provision(self.config, self.folder.path, requests=sign, **options)  # type: ignore[arg-type]

    def complete(self) -> Provisioned:
        """Everybody's keys made, asked for and signed."""
        return self.provision(*(self.keys(name).request for name in self.names))

    def snapshot(self) -> dict[str, tuple[int, bytes]]:
        """Return mode and content of every file of the consortium."""
        return {
            str(path.relative_to(self.root)): (path.stat().st_mode & 0o7777, path.read_bytes())
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }
