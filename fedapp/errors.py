"""The errors of fedapp: one sentence each, with a process exit code.

A message names what is known of site, round, field, expected, got, and says what to do.
Exit codes: 2 for a mistake in the settings, 3 for data, 4 for a refused update or handshake,
5 for missing replies, 6 for a broken checkpoint or ledger, 1 for everything else.
"""

from __future__ import annotations


class FedappError(Exception):
    """Base of every error that ends a run or a round with one clear sentence.

    Parameters
    ----------
    message : str
        What is wrong, with the expected and the received value, and what to do.
    site : str, optional
        Name of the site concerned.
    round : int, optional
        Round concerned.
    """

    exit_code = 1

    def __init__(self, message: str, *, site: str | None = None, round: int | None = None) -> None:
        self.message, self.site, self.round = message, site, round
        super().__init__(str(self))

    def __str__(self) -> str:
        where = [f"site {self.site}"] if self.site else []
        where += [f"round {self.round}"] if self.round is not None else []
        return f"{', '.join(where)}: {self.message}" if where else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments do not survive the default reduction; Ray moves errors by it.
        return _rebuild, (type(self), self.message, self.site, self.round)


def _rebuild(
    kind: type[FedappError], message: str, site: str | None, round: int | None
) -> FedappError:
    return kind(message, site=site, round=round)


class ConfigError(FedappError):
    """A setting is unknown, out of range, or contradicts another one."""

    exit_code = 2


class DataError(FedappError):
    """A site's data is missing, malformed or cannot support the task."""

    exit_code = 3


class DeviceError(FedappError):
    """The device that was asked for is absent or unusable."""

    exit_code = 2


class TrainingError(FedappError):
    """Local training stopped, for instance at a non-finite loss."""


class SiteStateError(FedappError):
    """What a site keeps between its rounds cannot be read or written."""


class SiteUnavailable(FedappError):
    """A site's service cannot be reached, or does not answer in time; worth another attempt."""


class TaskCancelled(FedappError):
    """A site's work was called off before its end."""


class HandshakeError(FedappError):
    """Two sites, or a site and the coordinator, do not agree before round 1."""

    exit_code = 4


class Refused(FedappError):
    """Something that another machine sent is not acceptable; ``reason`` is a stable name.

    Parameters
    ----------
    reason : str
        Machine-readable; the kind says where the names are listed.
    """

    exit_code = 4

    def __init__(
        self, message: str, *, reason: str, site: str | None = None, round: int | None = None
    ) -> None:
        self.reason = reason
        super().__init__(message, site=site, round=round)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_refusal, (type(self), self.message, self.reason, self.site, self.round)


def _rebuild_refusal(
    kind: type[Refused], message: str, reason: str, site: str | None, round: int | None
) -> Refused:
    return kind(message, reason=reason, site=site, round=round)


class UpdateRefused(Refused):
    """An update fails validation; ``reason`` is one of ``fedapp.validation.REASONS``."""


class PolicyRefused(Refused):
    """A site's policy does not allow it; ``reason`` is a rule, one of `fedapp.policy.RULES`."""


class MissingReplies(FedappError):
    """Fewer sites than required answered before the deadline, after every retry."""

    exit_code = 5


class CheckpointError(FedappError):
    """A checkpoint is missing, corrupt, or belongs to a different run."""

    exit_code = 6


class MergeRefused(FedappError):
    """The merged model would be non-finite; the previous model is kept."""

    exit_code = 4


class WireError(FedappError):
    """A message does not have the form that both sides agreed on."""

    exit_code = 4


class GossipError(FedappError):
    """The gossip layer cannot do what it was asked."""


class IdentityError(GossipError):
    """A certificate, key or authority is missing, unreadable, expired or another's."""

    exit_code = 2


class ProvisionError(FedappError):
    """A key, a signing request or a folder of the consortium's is missing, wrong or in the way."""

    exit_code = 2


class PeerError(GossipError):
    """A peer cannot be reached, or does not keep to the protocol; worth another attempt."""


class StoreError(GossipError):
    """The folder of received updates cannot take or give what it should."""


class EnvelopeRefused(Refused, GossipError):
    """A peer's offer is refused; ``reason`` is one of ``fedapp.gossip.refusals.REASONS``."""


class LedgerError(FedappError):
    """A record that only grows was altered, lost lines, or belongs to something else."""

    exit_code = 6
