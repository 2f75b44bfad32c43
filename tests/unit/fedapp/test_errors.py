"""Errors are sentences with an exit code, and survive the trip between processes."""

import copy
import pickle

import pytest

from fedapp import errors
from fedapp.errors import FedappError, Refused


def _kinds() -> list[type[FedappError]]:
    found, waiting = [], [FedappError]
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting += kind.__subclasses__()
    return [kind for kind in found if kind.__module__ == errors.__name__]


def _make(kind: type[FedappError], **where: object) -> FedappError:
    extra = {"reason": "empty"} if issubclass(kind, Refused) else {}
    return kind("the sky fell; wear a hat", **extra, **where)


@pytest.mark.parametrize("kind", _kinds())
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_survives_pickling(kind, protocol):
    error = _make(kind, site="basel", round=7)

    back = pickle.loads(pickle.dumps(error, protocol))

    assert type(back) is kind
    assert vars(back) == vars(error)
    assert str(back) == str(error)
    assert back.exit_code == kind.exit_code


@pytest.mark.parametrize("kind", _kinds())
def test_every_error_can_be_copied_and_raised_again(kind):
    with pytest.raises(kind, match="site bern: the sky fell"):
        raise copy.copy(_make(kind, site="bern"))


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ({}, "the sky fell; wear a hat"),
        ({"site": "bern"}, "site bern: the sky fell; wear a hat"),
        ({"round": 0}, "round 0: the sky fell; wear a hat"),
        ({"site": "bern", "round": 3}, "site bern, round 3: the sky fell; wear a hat"),
    ],
)
def test_the_sentence_names_site_and_round_when_known(where, text):
    assert str(_make(FedappError, **where)) == text


def test_exit_codes_are_those_documented():
    codes = {kind.__name__: kind.exit_code for kind in _kinds()}

    assert codes == {
        "FedappError": 1,
        "TrainingError": 1,
        "ProvisionError": 2,
        "SiteStateError": 1,
        "SiteUnavailable": 1,
        "TaskCancelled": 1,
        "GossipError": 1,
        "PeerError": 1,
        "StoreError": 1,
        "ConfigError": 2,
        "DeviceError": 2,
        "IdentityError": 2,
        "DataError": 3,
        "HandshakeError": 4,
        "Refused": 4,
        "UpdateRefused": 4,
        "PolicyRefused": 4,
        "EnvelopeRefused": 4,
        "WireError": 4,
        "MergeRefused": 4,
        "MissingReplies": 5,
        "CheckpointError": 6,
        "LedgerError": 6,
    }
