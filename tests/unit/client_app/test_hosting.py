"""Which sites a node hosts, the cache, and a site with bad data among good ones."""

import pytest

from client_app import hosting
from client_app.data import load
from client_app.hosting import hosted_sites
from fedapp.config import RunConfig
from fedapp.errors import ConfigError, DataError
from fedapp.exchange import Action, Instruction


@pytest.fixture(autouse=True)
def _fresh_cache(monkeypatch):
    monkeypatch.setattr(hosting, "_SITES", {})


def write(path, **sites):
    rows = ["text,label,site"]
    for site, labels in sites.items():
        rows += [f"{site} note {i},{label},{site}" for i, label in enumerate(labels)]
    path.write_text("\n".join(rows) + "\n")
    return RunConfig.from_flat(
        {
            "data.source": str(path),
            "data.labels": "healthy,ill",
            "model.source": "embedded:tiny-encoder",
        }
    )


GOOD = ["healthy", "ill"] * 10


def test_the_largest_sites_stand_first_at_every_node(tmp_path):
    sizes = {"a": GOOD, "b": GOOD * 3, "c": GOOD * 2, "d": ["ill"] * 90, "e": GOOD * 4}
    config = write(tmp_path / "d.csv", **sizes)

    hosted = [
        list(hosted_sites(config, {"partition-id": i, "num-partitions": 2})) for i in range(2)
    ]

    assert hosted == [["e", "c", "d"], ["b", "a"]]  # d, all of one label, cannot train


def test_a_node_with_too_many_sites_says_how_many_nodes_to_simulate(tmp_path, monkeypatch):
    monkeypatch.setattr(hosting, "MOST_SITES", 2)
    config = write(tmp_path / "d.csv", e=GOOD, a=GOOD, c=GOOD, b=GOOD, d=GOOD)

    with pytest.raises(ConfigError, match=r"host 3 of the 5 sites, at most 2 .* to 5, .* 3 or"):
        hosted_sites(config, {"partition-id": 0, "num-partitions": 2})


def test_nodes_share_the_sorted_sites(tmp_path):
    config = write(tmp_path / "d.csv", e=GOOD, a=GOOD, c=GOOD, b=GOOD, d=GOOD)

    hosted = [
        list(hosted_sites(config, {"partition-id": i, "num-partitions": 2})) for i in range(2)
    ]

    assert hosted == [["a", "c", "e"], ["b", "d"]]


def test_a_deployed_node_hosts_the_site_it_names(tmp_path):
    config = write(tmp_path / "d.csv", a=GOOD, b=GOOD)

    sites = hosted_sites(config, {"site": "b"})

    assert list(sites) == ["b"]
    assert sites["b"].data.site == "b"


def test_sites_live_until_other_data_settings_come(tmp_path):
    config = write(tmp_path / "d.csv", a=GOOD, b=GOOD)
    node = {"partition-id": 0, "num-partitions": 1}

    first = hosted_sites(config, node)["a"]
    same = hosted_sites(config.with_changes({"method": "fedavg"}), node)["a"]
    other = hosted_sites(config.with_changes({"data.max-examples": 12}), node)["a"]

    assert same is first
    assert other is not first
    assert len(hosting._SITES) == 1


def test_one_bad_site_does_not_hide_the_others(tmp_path):
    config = write(tmp_path / "d.csv", a=GOOD, b=["ill"] * 20)

    sites = hosted_sites(config, {"partition-id": 0, "num-partitions": 1})

    replies = {
        name: site.execute(Instruction(Action.DESCRIBE, name, config))
        for name, site in sites.items()
    }
    assert replies["a"].failure is None
    assert replies["b"].failure.kind == "DataError"
    assert replies["b"].failure.message.startswith("site b: ")
    assert replies["b"].site == "b"


def test_a_row_that_cannot_be_read_names_file_column_row_and_site(tmp_path):
    """No node can say which sites there are: every one of them tells the same."""
    config = write(tmp_path / "d.csv", a=GOOD, b=GOOD)
    with (tmp_path / "d.csv").open("a") as stream:
        stream.write(" ,ill,b\n")

    for node in range(2):
        with pytest.raises(DataError) as caught:
            hosted_sites(config, {"partition-id": node, "num-partitions": 2})
        assert str(caught.value) == (
            "site b: d.csv, column 'text', row 41: expected text, got nothing; fill or remove "
            "the row"
        )


def test_nothing_of_another_site_is_in_what_a_site_says_of_itself(tmp_path):
    """Neither its labels, nor its problems, nor how many records it has."""

    def described():
        site = hosted_sites(config, {"site": "a"})["a"]
        reply = site.execute(Instruction(Action.DESCRIBE, "a", config))
        assert reply.failure is None
        return {k: v for k, v in reply.description.items() if k != "clock"}

    config = write(tmp_path / "d.csv", a=GOOD)
    alone = described()
    hosting._SITES.clear()
    write(tmp_path / "d.csv", a=GOOD, b=["healthy", "ill", "odd"] * 9, c=["ill"] * 3)

    assert described() == alone
    assert alone["label_map"] == ["healthy", "ill"]


def test_bad_sites_do_not_make_the_others_read_the_file_again(tmp_path, monkeypatch):
    reads = []
    original = load.read_table
    monkeypatch.setattr(load, "read_table", lambda data: (reads.append(1), original(data))[1])
    config = write(tmp_path / "d.csv", a=GOOD, b=["ill"] * 20, c=["ill"] * 20, d=GOOD)

    for _ in range(2):
        hosted_sites(config, {"partition-id": 0, "num-partitions": 2})

    assert len(reads) == 1


def test_a_deployed_node_wants_its_labels_named(tmp_path):
    config = write(tmp_path / "d.csv", a=GOOD).with_changes({"data.labels": ""})

    with pytest.raises(ConfigError, match=r"data\.labels is empty"):
        hosted_sites(config, {"site": "a"})

    sites = hosted_sites(config, {"partition-id": 0, "num-partitions": 1})
    assert sites["a"].data.label_map == ["healthy", "ill"]


def test_other_held_out_sites_are_checked_anew(tmp_path):
    config = write(tmp_path / "d.csv", a=GOOD)
    node = {"partition-id": 0, "num-partitions": 1}
    hosted_sites(config, node)
    with (tmp_path / "d.csv").open("a") as stream:
        stream.write('x,ill,"b, c"\n')

    with pytest.raises(DataError, match=r"federation\.held-out cannot name it"):
        hosted_sites(config.with_changes({"federation.held-out": "b, c"}), node)


def test_a_missing_file_is_an_error_of_the_node():
    config = RunConfig.from_flat({"data.source": "/nowhere/d.csv"})

    with pytest.raises(DataError, match=r"not found: d\.csv"):
        hosted_sites(config, {"partition-id": 0, "num-partitions": 1})


def test_a_node_must_say_what_it_hosts():
    with pytest.raises(ConfigError, match="--node-config"):
        hosted_sites(RunConfig(), {})
