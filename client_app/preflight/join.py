"""`fedapp site join`: the last look before this hospital's SuperNode starts."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from client_app.service.calls import HEALTH, socket_path, target
from client_app.service.proto import site_pb2
from fedapp.config_join import JoinConfig
from fedapp.config_site import DialSection
from fedapp.errors import ConfigError, SiteUnavailable
from fedapp.preflight.certificates import check_files, utc_now
from fedapp.preflight.finding import Finding, Status, attempt
from fedapp.preflight.network import check_network
from fedapp.provision.keys import read_node_key
from fedapp.text import clean

_TIMEOUT = 5.0  # seconds


def check_join(join: JoinConfig) -> Iterator[Finding]:
    """Yield one finding after the other: the service beside, the key, the way to the coordinator.

    Parameters
    ----------
    join : JoinConfig
    """
    yield attempt("service", lambda: _service(join))
    yield attempt("key", lambda: _key(join))
    yield from check_files([str(join.authority)], utc_now())
    dial = {"superlink": join.superlink, "authority": str(join.authority)}
    yield from check_network(DialSection.model_validate(dial))


def _service(join: JoinConfig) -> Finding:
    if not join.site_address:
        raise ConfigError(
            "join.toml has no site-address, so that the SuperNode, which runs the coordinator's "
            "code, would read the records itself; name the socket of `fedapp site serve`"
        )
    path = socket_path(join.site_address)
    with grpc.insecure_channel(target(path)) as channel:
        try:
            data = channel.unary_unary(HEALTH)(b"", timeout=_TIMEOUT)
        except grpc.RpcError:
            raise SiteUnavailable(
                f"nobody answers on {path}; start `fedapp site serve` first, and let this account "
                "open its socket"
            ) from None
    found = site_pb2.HealthReply.FromString(data)
    if found.site != join.site:
        raise ConfigError(
            f"the service on {path} is that of {clean(found.site)}, expected {join.site}; correct "
            "site-address or site in join.toml"
        )
    if not found.ready:
        raise SiteUnavailable("the service is still loading; try again in a minute")
    return Finding("service", Status.OK, f"{found.site}, fedapp {found.version}, ready")


def _key(join: JoinConfig) -> Finding:
    read_node_key(join.key)
    return Finding("key", Status.OK, f"{join.key}, for its owner alone")
