"""What all sites, and the coordinator, must have in common before round 1."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import fedapp
from fedapp.config import RunConfig
from fedapp.default_settings import defaults_digest
from fedapp.errors import HandshakeError
from fedapp.exchange import SiteDescription
from fedapp.tasks import task_info
from fedapp.text import clean
from server_app.roster import Member

_SHORTENED = 20
_LONGEST_BASE = 512
_LONGEST_SHOWN = 200


@dataclass(frozen=True)
class _Field:
    """One thing that must be equal; ``expected`` is None where only the sites can tell."""

    name: str
    value: Callable[[SiteDescription], Any]
    expected: Any
    advice: str


def _fields(config: RunConfig, peft_keys: Iterable[str]) -> list[_Field]:
    # In the order in which one cause explains the next: a version before the digests it changes.
    # What the run publishes is one site's peft_config, so no site may decide what is in it.
    same_config = "all sites must run with the coordinator's settings"
    return [
        _Field(
            "fedapp version",
            lambda d: d.package_version,
            fedapp.__version__,
            f"install fedapp {fedapp.__version__} there",
        ),
        _Field(
            "digest of the default settings",
            lambda d: d.defaults_digest,
            defaults_digest(),
            "install the coordinator's very build of fedapp there",
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
        *_peft_fields(config, peft_keys),
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


def _peft_fields(config: RunConfig, keys: Iterable[str]) -> list[_Field]:
    install = "install the same fedapp and peft everywhere"
    # PEFT writes many names of layers in a shorter form; all sites must then have the same one.
    targets = sorted(config.lora.targets) if len(config.lora.targets) < _SHORTENED else None

    types = list(task_info(config).loaders)  # with several, the sites' base models decide
    expected: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": types[0] if len(types) == 1 else None,
        "r": config.lora.rank,
        "lora_alpha": config.lora.alpha,
        "target_modules": targets,
    }
    if config.model.trainable == "all":  # nothing of PEFT's is exported
        expected = {"task_type": expected["task_type"]}

    def field(key: str) -> _Field:
        def value(description: SiteDescription) -> Any:
            return _sorted(description.peft_config.get(key))

        return _Field(f"peft_config.{clean(key)}", value, expected.get(key), install)

    return [field(key) for key in (*expected, *sorted(set(keys) - set(expected)))]


def check_publishable(site: str, description: SiteDescription) -> None:
    """Check what a site's words would say in files that others load.

    Raises
    ------
    HandshakeError
        If ``peft_config`` names code or ranks of its own, or a base model's name is no plain text.
    """
    for key in ("auto_mapping", "alpha_pattern", "rank_pattern"):
        if description.peft_config.get(key):
            raise HandshakeError(
                f"peft_config.{key} is {_show(description.peft_config[key])}, expected nothing; "
                "install the same fedapp and peft everywhere",
                site=site,
            )
    names = {
        "base_model": description.base_model,
        "peft_config.base_model_name_or_path": description.peft_config.get(
            "base_model_name_or_path"
        ),
    }
    for name, value in names.items():
        if value is None and name != "base_model":
            continue
        plain = isinstance(value, str) and value.isprintable() and not set(value) & set("\"'`")
        if not plain or not 0 < len(str(value)) <= _LONGEST_BASE:
            raise HandshakeError(
                f"{name} is {_show(value)}, expected 1 to {_LONGEST_BASE} printable characters "
                "without quotes or backslashes; rename the model",
                site=site,
            )


def check_equal(members: Mapping[str, Member], config: RunConfig) -> None:
    """Compare everything that must be equal at all sites.

    What the settings say is compared with them, the rest with what most sites have. Each site's
    description must also pass `check_publishable`.

    Raises
    ------
    HandshakeError
        For the first difference: site, field, what was expected, what came, and what to do.
    """
    for site, member in members.items():
        check_publishable(site, member.description)
    peft_keys = {key for member in members.values() for key in member.description.peft_config}
    for field in _fields(config, peft_keys):
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


def _sorted(value: Any) -> Any:
    texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return sorted(value) if texts else value


def _show(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    text = clean(text, _LONGEST_SHOWN)
    return f"'{text}'" if isinstance(value, list | str) else text
