"""Which sites a Flower node hosts, and the sites that live in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from client_app.data import SiteData, load_site, load_usable_sites
from client_app.failures import to_failure
from client_app.faults import check_allowed, with_faults
from client_app.site import LocalSite, Site
from fedapp.config import RunConfig, Scalar
from fedapp.errors import ConfigError, DataError
from fedapp.exchange import Instruction, Reply

MOST_SITES = 400
"""Most sites of a node: one message tells of all (`fedapp.wire.MAX_HEADER_BYTES`)."""

# The sites of the newest data settings. A simulation's worker process serves several nodes, and
# every message of a run finds its site with its records read and tokenised.
_SITES: dict[object, dict[str, Site]] = {}


class UnusableSite:
    """A site whose data is bad: it answers every instruction with the reason."""

    def __init__(self, name: str, error: DataError) -> None:
        self.name, self.error = name, error

    def execute(self, instruction: Instruction) -> Reply:
        """Reply with the failure."""
        failure = to_failure(self.error, self.name, instruction.round)
        return Reply(instruction.site, instruction.round, instruction.action, failure=failure)


def hosted_sites(config: RunConfig, node_config: Mapping[str, Scalar]) -> dict[str, Site]:
    """Return the sites that a node hosts, by name.

    In a simulation node ``i`` of ``n`` hosts every ``n``-th site from the ``i``-th on, in the order
    of their training records, most first: Flower takes one message of each node in turn, in the
    order of the nodes, so that the largest sites begin first whichever message was sent first. A
    deployed node names its one site.

    Parameters
    ----------
    config : RunConfig
    node_config : mapping
        ``partition-id`` and ``num-partitions``, or ``site``.

    Raises
    ------
    ConfigError
        If the node's configuration names neither, a simulated node would host too many, or a
        deployed one would have to find its labels in its records, or is not told to take part in
        a rehearsal of attacks.
    DataError
        If the data cannot be read at all.
    """
    if "partition-id" in node_config and "num-partitions" in node_config:
        sites = _cached(config, "", lambda: _simulated(config))
        first, nodes = int(node_config["partition-id"]), int(node_config["num-partitions"])
        hosted = _largest_first(sites)[first::nodes]
        if len(hosted) > MOST_SITES:
            raise ConfigError(
                f"a node would host {len(hosted)} of the {len(sites)} sites, at most {MOST_SITES} "
                f"can describe themselves in one message; set data.sites to {len(sites)}, so that "
                f"more nodes are simulated, or simulate {-(-len(sites) // MOST_SITES)} or more"
            )
        return {name: sites[name] for name in hosted}
    if "site" in node_config:
        name = str(node_config["site"])
        check_allowed(config, node_config)
        return _cached(config, name, lambda: {name: _deployed(config, name)})
    raise ConfigError(
        "the node's configuration has neither partition-id and num-partitions nor site; start the "
        "SuperNode with --node-config 'site=\"NAME\"'"
    )


def _largest_first(sites: Mapping[str, Site]) -> list[str]:
    def key(name: str) -> tuple[int, str]:
        site = sites[name]
        return (-len(site.data.splits.get("train", ())) if isinstance(site, LocalSite) else 0), name

    return sorted(sites, key=key)


def _cached(config: RunConfig, name: str, load: Callable[[], dict[str, Site]]) -> dict[str, Site]:
    held_out = config.federation.held_out
    key = (config.data, config.model.task, config.seed, held_out, config.faults.sites, name)
    if key not in _SITES:
        loaded = with_faults(load(), config)
        _SITES.clear()  # other settings mean another run
        _SITES[key] = loaded
    return _SITES[key]


def _simulated(config: RunConfig) -> dict[str, Site]:
    # If one site's records are bad the others can still be described, so that the coordinator
    # hears of every bad site at once.
    return {
        name: LocalSite(data) if isinstance(data, SiteData) else UnusableSite(name, data)
        for name, data in load_usable_sites(config).items()
    }


def _deployed(config: RunConfig, name: str) -> Site:
    try:
        return LocalSite(load_site(config, name, find_labels=False))
    except DataError as error:
        return UnusableSite(name, error)
