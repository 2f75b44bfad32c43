"""What all sites, and the coordinator, must have in common before round 1."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import fedapp
from fedapp.config import RunConfig
from fedapp.errors import HandshakeError
from fedapp.exchange import SiteDescription
from server_app.roster import Member


@dataclass(frozen=True)
class _Field:
    """One thing that must be equal; ``expected`` is None where only the sites can tell."""

    name: str
    value: Callable[[SiteDescription], Any]
    expected: Any
    advice: str


def _fields(config: RunConfig) -> list[_Field]:
    # In the order in which one cause explains the next: a version before the digests it changes.
    same_config = "all sites must run with the coordinator's settings"
    return [
        _Field(
            "fedapp version",
            lambda d: d.package_version,
            fedapp.__version__,
            f"install fedapp {fedapp.__version__} there",
        ),
        _Field(
            "torch version",
            lambda d: d.torch_version.partition("+")[0],
            None,
            "install the same torch everywhere, or the sites do not start from the same numbers",
        ),
        _Field("task", lambda d: d.task, config.model.task, same_config),
        _Field(
            "base model digest",
            lambda d: d.base_model_digest,
            None,
            "give every site the same model files",
        ),
        _Field("rank", lambda d: d.rank, config.lora.rank, same_config),
        _Field("alpha", lambda d: d.alpha, config.lora.alpha, same_config),
        _Field("targets", lambda d: sorted(d.targets), sorted(config.lora.targets), same_config),
        _Field("heads", lambda d: sorted(d.heads), None, same_config),
        _Field("dtype", lambda d: d.dtype, None, same_config),
        _Field(
            "label map",
            lambda d: list(d.label_map),
            list(config.data.labels) or None,
            "set data.labels to all labels in one order",
        ),
        _Field("adapter layout digest", lambda d: d.layout_digest, None, same_config),
        _Field(
            "threads",
            lambda d: d.threads,
            config.train.threads or None,
            "set train.threads, since sums depend on the number of threads",
        ),
        _Field(
            "initial adapter digest",
            lambda d: d.initial_digest,
            None,
            "the sites derive different first adapters from the same seed; "
            "install the same packages everywhere",
        ),
    ]


def check_equal(members: Mapping[str, Member], config: RunConfig) -> None:
    """Compare everything that must be equal at all sites.

    What the settings say is compared with them, the rest with what most sites have.

    Raises
    ------
    HandshakeError
        For the first difference: site, field, what was expected, what came, and what to do.
    """
    for field in _fields(config):
        values = {site: field.value(member.description) for site, member in members.items()}
        expected = field.expected if field.expected is not None else _most_common(values)
        for site, got in values.items():
            if got != expected:
                source = "the settings" if field.expected is not None else "the other sites"
                raise HandshakeError(
                    f"{field.name} is {_show(got)}, expected {_show(expected)} as {source} "
                    f"have it; {field.advice}",
                    site=site,
                )


def _most_common(values: dict[str, Any]) -> Any:
    """Return the value that most sites have (the first site's on a tie)."""
    texts = [json.dumps(value) for value in values.values()]
    return json.loads(Counter(texts).most_common(1)[0][0]) if texts else None


def _show(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"'{text}'" if isinstance(value, list | str) else text
