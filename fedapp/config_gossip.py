"""The settings of the gossip layer: how much, how long, how often."""

from __future__ import annotations

from fedapp.config_section import Section, setting


class GossipSection(Section):
    """Peers that exchange updates without a server."""

    max_payload_mb: float = setting(512.0, "largest update accepted", "MB", gt=0, le=1e6)
    chunk_kib: int = setting(
        1024,
        "piece in which an update travels; the most that is sent again after a broken link",
        "KiB",
        ge=16,
        le=2048,
    )
    store_mb: float = setting(8192.0, "largest store of updates on disk", "MB", gt=0, le=1e9)
    store_age: float = setting(604800.0, "longest time an update is kept", "s", ge=60, le=3e7)
    gather_mb: float = setting(
        256.0,
        "most memory for updates that come in while a round waits for them; others are read again "
        "from the disk",
        "MB",
        ge=0,
        le=1e6,
    )
    keep_rounds: int = setting(4, "newest updates kept of every site", "rounds", ge=1, le=1000)
    lifetime: float = setting(
        86400.0, "time after which an update of this site is void", "s", ge=60, le=604800
    )
    clock_skew: float = setting(
        300.0, "largest difference between two sites' clocks", "s", ge=0, le=3600
    )
    connect_timeout: float = setting(10.0, "longest wait for a peer's health", "s", gt=0, le=600)
    digest_wait: float = setting(
        20.0, "time for which a peer may keep back its answer until it has news", "s", gt=0, le=300
    )
    answer_timeout: float = setting(
        10.0, "longest wait for an answer that could come at once", "s", gt=0, le=600
    )
    chunk_timeout: float = setting(60.0, "longest wait for one chunk", "s", gt=0, le=3600)
    keepalive: float = setting(
        20.0, "time between signs of life on a silent connection", "s", ge=1, le=3600
    )
    backoff_base: float = setting(
        0.2, "first wait before a failed peer is tried again; doubles each time", "s", gt=0, le=60
    )
    backoff_cap: float = setting(10.0, "longest such wait", "s", gt=0, le=600)
    dead_after: float = setting(
        45.0, "silence after which this node waits no more for a peer", "s", gt=0, le=86400
    )
    max_pulls: int = setting(4, "updates received at a time", ge=1, le=256)
    calls_per_peer: int = setting(8, "calls of one peer that are served at a time", ge=2, le=1024)

    @property
    def max_payload(self) -> int:
        """Largest update in bytes."""
        return int(self.max_payload_mb * 1e6)

    @property
    def chunk(self) -> int:
        """Bytes of a chunk."""
        return self.chunk_kib * 1024

    @property
    def store_bytes(self) -> int:
        """Largest store in bytes."""
        return int(self.store_mb * 1e6)

    @property
    def gather_bytes(self) -> int:
        """Most memory for updates that a gathering waits for, in bytes."""
        return int(self.gather_mb * 1e6)

    def plain(self) -> dict[str, int | float]:
        """Return all settings and what is derived from them, for a process without pydantic.

        ``types.SimpleNamespace(**plain)`` serves a node as well as this section does.
        """
        derived = {
            name: getattr(self, name)
            for name in ("max_payload", "chunk", "store_bytes", "gather_bytes")
        }
        return {**self.model_dump(), **derived}
