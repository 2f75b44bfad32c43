"""``fedapp provision`` and ``fedapp enrol``: the coordinator's part in who trusts whom."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedapp.cli.console import say, warn
from fedapp.config_provision import read_consortium
from fedapp.paths import user_path
from fedapp.provision.consortium import Provisioned
from fedapp.provision.consortium import provision as provision_
from fedapp.provision.enrol import enrol as enrol_
from fedapp.provision.folder import Folder

FOLDER = "provisioned"

Provisions = Annotated[
    Path, typer.Option("--from", help="Folder that `fedapp provision` made.", show_default=True)
]


def provision(
    config: Annotated[Path, typer.Argument(help="The coordinator's file, TOML.")],
    to: Annotated[
        Path | None, typer.Option(help="Folder for it; default: provisioned, beside the file.")
    ] = None,
    sign: Annotated[
        list[Path] | None, typer.Option(help="A member's signing request; may be repeated.")
    ] = None,
    fingerprint: Annotated[
        list[str] | None,
        typer.Option(help="What the member said by telephone; one for each --sign, in order."),
    ] = None,
    unseen: Annotated[
        bool, typer.Option("--unseen", help="Sign without --fingerprint: for trials.")
    ] = False,
    renew: Annotated[
        list[str] | None,
        typer.Option(help="A member to certify anew, also with new keys; or superlink."),
    ] = None,
) -> None:
    """Make a consortium's authority, certificates and join kits; sign what members ask for.

    The same again changes nothing, apart from certificates that run out soon: those are issued
    anew. Private keys are never overwritten and never leave: members make their own. A member that
    is marked `revoked = true`, or taken out of the file, loses its certificate here; then run
    `fedapp enrol`.

    Exit codes: 0 done; 2 settings, keys or requests.

    Example: fedapp provision consortium.toml --sign basel.pem --fingerprint "B7F9 ... 3B"

    Next step: send each member its folder below kits, and `fedapp superlink`.
    """
    path = user_path(config).absolute()
    folder = user_path(to).absolute() if to is not None else path.parent / FOLDER
    done = provision_(
        read_consortium(path),
        folder,
        requests=[user_path(one).absolute() for one in sign or []],
        fingerprints=fingerprint or [],
        unseen=unseen,
        renew=renew or [],
    )
    _tell(done, folder)
    if sign and unseen:
        warn(
            "a request was signed unseen: compare its fingerprint above with the member by "
            "telephone before you hand out the certificate"
        )
    missing = [name for name, standing in done.members.items() if standing is None]
    if missing:
        say(f"Next: send {', '.join(missing)} the kit, and --sign the request that comes back.")
    else:
        say(f"Next: fedapp superlink --from {folder}, then fedapp enrol --from {folder}")


def enrol(
    superlink: Annotated[str, typer.Option(help="The SuperLink's inside address, HOST:PORT.")],
    folder: Provisions = Path(FOLDER),
) -> None:
    """Tell a running SuperLink whose SuperNodes may join: those of the present members, no others.

    The same again changes nothing.

    Example: fedapp enrol --superlink 127.0.0.1:8000

    Next step: the members start theirs.
    """
    done = enrol_(Folder(user_path(folder).absolute()), superlink)
    for what, names in (("added", done.added), ("kept", done.kept), ("removed", done.removed)):
        if names:
            say(f"{what}: {', '.join(names)}")
    if not done.added and not done.kept:
        warn("no member has a signed request, so that nobody can join")
    say("Next: members start their SuperNodes; flwr supernode list shows who is online.")


def _tell(done: Provisioned, folder: Path) -> None:
    say(f"{'Made' if done.new_authority else 'Kept'} the consortium's authority in {folder}")
    say(f"  fingerprint {done.fingerprint}")
    issued, until = done.superlink
    say(f"SuperLink: certificate {'issued' if issued else 'kept'}, until {until:%Y-%m-%d}")
    for name, standing in done.members.items():
        if standing is None:
            say(f"{name}: no signing request yet")
            continue
        word = "issued" if standing.issued else "kept"
        say(f"{name}: certificate {word}, until {standing.until:%Y-%m-%d}")
        say(f"  fingerprint {standing.fingerprint}")
    for name in done.gone:
        say(f"{name}: has left; no certificate, no kit")
    say(f"Kits changed: {', '.join(done.kits) or 'none'}")
