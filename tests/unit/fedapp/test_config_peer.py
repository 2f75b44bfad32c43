"""A site's file and the consortium file: what they give, and what is refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedapp.config_gossip import GossipSection
from fedapp.config_peer import load_peer, read_peer
from fedapp.errors import ConfigError
from fedapp.gossip.membership import Member
from fedapp.gossip.start import Start
from fedapp.section_file import LONGEST_FILE

RUN = "0123456789abcdef" * 2
SITE = """\
name = "Bern"
consortium = "shared/consortium.toml"
certificate = "own/certificate.pem"
key = "/keys/key.pem"
authority = "authority.pem"
store = "store"
"""
CONSORTIUM = f"""\
run = "{RUN}"
topology = "ring"
[[members]]
name = "Bern"
address = "bern.example.org:9443"
[[members]]
name = "Kiel"
address = "[2001:db8::1]:9443"
[[members]]
name = "Zürich"
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/consortium.toml").write_text(CONSORTIUM, encoding="utf-8")
    (tmp_path / "site.toml").write_text(SITE, encoding="utf-8")
    return tmp_path / "site.toml"


def test_paths_are_relative_to_the_file_and_the_rest_has_defaults(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")

    config, consortium = read_peer(site)

    here = site.parent
    assert (config.certificate, config.key) == (
        here / "own/certificate.pem",
        Path("/keys/key.pem"),
    )
    assert (config.authority, config.store) == (here / "authority.pem", here / "store")
    assert config.announce == "bern.example.org:9443"
    assert config.gossip == GossipSection()
    assert consortium.peers() == [
        Member("Bern", "bern.example.org:9443"),
        Member("Kiel", "[2001:db8::1]:9443"),
        Member("Zürich", ""),
    ]
    assert consortium.graph()["Bern"] == ("Kiel", "Zürich")
    assert consortium.origins("Bern") == ["Kiel", "Zürich"]


def test_a_node_takes_both_files_as_one_and_reads_them_in_another_process(site: Path) -> None:
    start = load_peer(site)

    assert Start.from_json(start.to_json()) == start
    assert (start.name, start.run, start.announce) == ("Bern", RUN, "bern.example.org:9443")
    assert (start.neighbours, start.origins) == (("Kiel", "Zürich"), ("Kiel", "Zürich"))
    assert start.path("store") == site.parent / "store"
    assert start.settings.chunk == GossipSection().chunk


def test_in_a_directed_topology_a_node_knows_who_asks_it(site: Path) -> None:
    path = site.parent / "shared/consortium.toml"
    four = CONSORTIUM.replace("ring", "exponential") + '[[members]]\nname = "Worms"\n'
    path.write_text(four, encoding="utf-8")

    start = load_peer(site)

    assert start.neighbours == ("Kiel", "Worms")
    assert start.listeners == ("Worms", "Zürich")
    assert Start.from_json(start.to_json()) == start


def test_nobody_waits_for_a_site_that_only_passes_on(site: Path) -> None:
    path = site.parent / "shared/consortium.toml"
    path.write_text(CONSORTIUM + "trains = false\n", encoding="utf-8")

    _, consortium = read_peer(site)

    assert consortium.origins("Bern") == ["Kiel"]
    assert consortium.origins("Zürich") == ["Bern", "Kiel"]
    assert consortium.graph()["Bern"] == ("Kiel", "Zürich")


def test_settings_of_the_gossip_layer_and_the_address_can_be_set(site: Path) -> None:
    site.write_text(
        SITE + 'announce = "10.0.0.1:1"\nlisten = "127.0.0.1:0"\n[gossip]\nmax-pulls = 2\n'
    )

    config, _ = read_peer(site)

    assert (config.announce, config.listen, config.gossip.max_pulls) == (
        "10.0.0.1:1",
        "127.0.0.1:0",
        2,
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('name = "Bern"', 'name = "Bern\\n"'), r"setting 'name': .*printable"),
        (('name = "Bern"', "name = 3"), "setting 'name': .*string.*got 3"),
        (('name = "Bern"', 'name = "Basel"'), "has no member 'Basel'; add the site there"),
        (('key = "/keys/key.pem"\n', ""), "setting 'key' is missing; it is its private key, PEM"),
        (("store =", "stor ="), "unknown setting 'stor'; did you mean 'store'"),
        (('store = "store"', 'store = "~nobodysaccount/x"'), "no account of that name"),
        (('store = "store"', 'store = "a\\u0000b"'), "NUL"),
        (
            ('store = "store"', 'store = "store"\nlisten = "9443"'),
            "setting 'listen': expected HOST:PORT, .* got '9443'",
        ),
        (
            ('store = "store"', 'store = "store"\nannounce = "host:0"'),
            "setting 'announce': expected HOST:PORT",
        ),
        (
            ('store = "store"', 'store = "store"\n[gossip]\nmax-pulls = 0'),
            "setting 'gossip.max-pulls': .*greater than or equal to 1, got 0",
        ),
        (
            ('store = "store"', 'store = "store"\n[gossip]\nmax-pull = 1'),
            "unknown setting 'gossip.max-pull'; did you mean 'max-pulls'",
        ),
    ],
)
def test_a_mistake_in_the_sites_file_is_one_sentence(
    site: Path, change: tuple[str, str], words: str
) -> None:
    assert change[0] in SITE
    site.write_text(SITE.replace(*change), encoding="utf-8")

    with pytest.raises(ConfigError, match=words) as caught:
        read_peer(site)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ((RUN, "short"), "setting 'run': .*pattern"),
        (('topology = "ring"', 'topology = "rign"'), "setting 'topology': .*'ring'.*got 'rign'"),
        (('topology = "ring"', 'topology = "k-regular"'), "needs a degree from 2 to 2, got 4"),
        (('name = "Kiel"', 'name = "Bern"'), "consortium.toml: two members are called 'Bern'"),
        (
            ('name = "Kiel"', 'nam = "Kiel"'),
            r"unknown setting 'members.1.nam'; did you mean 'name'",
        ),
        (
            ('"bern.example.org:9443"', '"bern"'),
            r"setting 'members.0.address': expected HOST:PORT.*got 'bern'",
        ),
        (("[[members]]", "[[member]]"), "unknown setting 'member'; did you mean 'members'"),
    ],
)
def test_a_mistake_in_the_consortium_file_is_one_sentence(
    site: Path, change: tuple[str, str], words: str
) -> None:
    assert change[0] in CONSORTIUM
    path = site.parent / "shared/consortium.toml"
    path.write_text(CONSORTIUM.replace(*change), encoding="utf-8")

    with pytest.raises(ConfigError, match=words):
        read_peer(site)


def test_a_wildcard_is_no_place_to_call(site: Path) -> None:
    path = site.parent / "shared/consortium.toml"
    path.write_text(CONSORTIUM.replace('address = "bern.example.org:9443"\n', ""))

    with pytest.raises(ConfigError, match=r"listen is 0\.0\.0\.0:9443, which is no place to call"):
        read_peer(site)


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b"a = = 1", b"a = " + b"[" * 5000, b"#" * (LONGEST_FILE + 1)]
)
def test_what_is_no_file_of_settings_is_told(site: Path, data: bytes) -> None:
    site.write_bytes(data)

    with pytest.raises(ConfigError, match=r"site\.toml "):
        read_peer(site)


def test_a_site_that_trains_names_the_settings_and_wants_its_neighbours_models(site: Path) -> None:
    text = (site.parent / "shared/consortium.toml").read_text(encoding="utf-8")
    more = "".join(f'[[members]]\nname = "{name}"\n' for name in ("Genf", "Ulm"))
    relay = text.replace('name = "Zürich"', 'name = "Zürich"\ntrains = false')
    (site.parent / "shared/consortium.toml").write_text(relay + more, encoding="utf-8")

    relaying = load_peer(site)
    site.write_text(SITE + 'settings = "run.toml"\n', encoding="utf-8")
    training = load_peer(site)

    assert (relaying.settings_file, relaying.origins) == ("", ("Kiel", "Genf", "Ulm"))
    assert training.settings_file == str(site.parent / "run.toml")
    assert training.state == str(site.parent / "state")
    assert training.neighbours == ("Genf", "Zürich")  # in the ring by name
    assert training.origins == ("Genf",), "Zürich trains nothing, and the others are no neighbours"
    assert training.degrees == dict.fromkeys(("Bern", "Genf", "Kiel", "Ulm", "Zürich"), 2)
    assert Start.from_json(training.to_json()) == training
