"""Every setting of fedapp: name, unit, default, bounds. There is no second place.

In TOML, on the command line and on the wire a setting is a dotted kebab-case key such as
``train.learning-rate``; in Python it is ``config.train.learning_rate``. Flower's run config has no
lists, so a list is written as one comma-separated string.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    Field,
    ValidationError,
)
from pydantic.fields import FieldInfo

from fedapp.config_algorithms import (
    FedavgmSection,
    FedproxSection,
    FedsamSection,
    FedyogiSection,
    ScaffoldSection,
)
from fedapp.config_ditto import DittoSection
from fedapp.config_dysco import DyscoSection
from fedapp.config_faults import FaultsSection
from fedapp.config_lightyear import LightyearSection
from fedapp.config_merging import SubspaceRegSection, SvdSection
from fedapp.config_p2p import P2pSection
from fedapp.config_pflalign import PflalignSection
from fedapp.config_relations import check_relations
from fedapp.config_robust import (
    BalanceSection,
    ClippingSection,
    FltrustSection,
    KrumSection,
    MultiKrumSection,
    NormClipSection,
    TrimmedMeanSection,
    UbarSection,
)
from fedapp.config_section import Names, Section, setting, split
from fedapp.errors import ConfigError
from fedapp.registry import METHODS

Scalar = bool | int | float | str

NEUTRAL = frozenset(
    {
        "name",
        "output-dir",
        "resume",
        "federation.min-sites",
        "federation.min-replies",
        "federation.connect-timeout",
        "federation.handshake-timeout",
        "federation.round-timeout",
        "federation.max-round-retries",
        "federation.max-payload-mb",
        "federation.local-only",
        "federation.keep-checkpoints",
        "federation.progress-interval",
        "federation.interference",
        "federation.interference-each",
        "federation.gsnr",
        "dysco.export-rank",
        "p2p.minimum",
        "p2p.gather-timeout",
        "train.generate-tokens",
        "train.generate-examples",
    }
)
"""Settings that do not change the rounds already computed, so that a resumed run may have others:
names and paths, how long and for how many to wait, and what else is measured or kept."""


_LONGEST_SHOWN = 100


class ModelSection(Section):
    """The frozen base model and what is learned on top of it."""

    source: str = setting(
        "embedded:minilm", "base model: embedded:NAME, a hub name, or a local folder"
    )
    task: Literal[
        "sequence-classification",
        "causal-lm",
        "multiple-choice",
        "image-classification",
        "image-segmentation",
    ] = setting("sequence-classification", "what the model learns to do")
    trainable: Literal["lora", "all"] = setting(
        "lora", "lora: a low-rank pair a layer on frozen weights, and the heads; all: every weight"
    )
    max_length: int = setting(128, "longest input; longer ones are cut", "tokens", ge=8, le=131072)
    quantization: Literal["none", "4bit"] = setting(
        "none", "precision of the frozen base weights; 4bit needs CUDA and the cuda extra"
    )
    choice_length: Literal["tokens", "characters"] = setting(
        "tokens",
        "multiple choice with a decoder: what the log-likelihood of a choice is divided by; "
        "characters is the acc_norm by which HellaSwag is reported",
    )


class LoraSection(Section):
    """The low-rank adapter; equal at every site."""

    rank: int = setting(8, "rank r of every pair (A: r x in, B: out x r)", ge=1, le=1024)
    alpha: float = setting(16.0, "the product B A is scaled by alpha / rank", gt=0, le=4096)
    dropout: float = setting(0.0, "dropout before A while training", ge=0, lt=1)
    targets: Names = setting("query,value", "names of the linear layers that get a pair")


class DataSection(Section):
    """Where the records come from and how they are dealt to sites and splits."""

    source: str = setting(
        "embedded:heart",
        "embedded:NAME, or a path to a CSV, JSONL, Parquet or npz file or a `datasets` folder",
    )
    text_column: str = setting("text", "column with the input text")
    label_column: str = setting("label", "column with the label")
    prompt_column: str = setting("prompt", "column with what a language model is asked")
    response_column: str = setting("response", "column with what it is to answer")
    messages_column: str = setting(
        "messages",
        "column with a chat as a list of {role, content}, the assistant's last; read where the "
        "source lacks prompt or response",
    )
    context_column: str = setting("context", "column with the question or beginning of a text")
    choices_column: str = setting(
        "choices",
        "column with the list of 2 to 16 choices, or one column a choice with commas between",
    )
    answer_column: str = setting(
        "answer", "column with the right choice: its number from 0, or its text"
    )
    image_column: str = setting("image", "column with an image as rows of pixels")
    mask_column: str = setting("mask", "column with a mask: the number of a class for every pixel")
    stratum_column: str = setting(
        "",
        "column that stratum, dirichlet and the splits go by where there is no label; empty: none",
    )
    site_column: str = setting("site", "column with the hospital, for partition=natural")
    labels: Names = setting(
        "", "labels, or classes of a mask, in their order; empty: the sorted values found"
    )
    partition: Literal["natural", "groups", "stratum", "dirichlet", "iid"] = setting(
        "natural",
        "how records are dealt to sites; groups: natural sites, whole, to data.sites groups; "
        "stratum: every task, or label, is a site",
    )
    sites: int = setting(
        4,
        "number of sites for groups, dirichlet and iid; natural sites and strata are as many as "
        "the source has, and the number is only a hint for `fedapp run`: nodes to simulate",
        ge=1,
        le=10000,
    )
    dirichlet_alpha: float = setting(
        0.5, "concentration; small means heterogeneous sites", gt=0, le=1e6
    )
    validation_fraction: float = setting(0.2, "share of each site for validation", gt=0, lt=0.9)
    test_fraction: float = setting(0.2, "share of each site for the test", gt=0, lt=0.9)
    duplicates: Literal["drop", "refuse"] = setting(
        "drop", "what to do with a record that occurs twice"
    )
    one_class: Literal["refuse", "allow"] = setting(
        "refuse", "what to do with a site whose training records all carry one label"
    )
    max_examples: int = setting(0, "most records kept per site; 0: all", "records", ge=0)


class TrainSection(Section):
    """Local training at a site."""

    optimizer: Literal["adamw", "sgd"] = setting("adamw", "local optimiser")
    learning_rate: float = setting(3e-3, "peak learning rate", gt=0, le=100)
    weight_decay: float = setting(0.01, "decoupled for adamw, L2 for sgd", ge=0, le=10)
    momentum: float = setting(0.9, "momentum of sgd", ge=0, lt=1)
    schedule: Literal["constant", "linear", "cosine"] = setting(
        "constant", "decay of the learning rate over the whole run, not per round"
    )
    warmup_fraction: float = setting(0.0, "share of all steps with a linear warm-up", ge=0, lt=1)
    local_epochs: int = setting(2, "passes over the training split per round", "epochs", ge=1)
    max_steps: int = setting(0, "most optimiser steps per round; 0: no limit", "steps", ge=0)
    batch_size: int = setting(16, "records per forward pass", "records", ge=1, le=65536)
    eval_batch_size: int = setting(64, "records per evaluation pass", "records", ge=1, le=65536)
    generate_tokens: int = setting(
        32,
        "most tokens that a causal-lm writes for an evaluation record; 0: nothing is generated",
        "tokens",
        ge=0,
        le=8192,
    )
    generate_examples: int = setting(
        64, "most records of a split that it writes for; 0: all", "records", ge=0
    )
    gradient_accumulation: int = setting(1, "batches per optimiser step", "batches", ge=1)
    clip_norm: float = setting(1.0, "largest global gradient norm; 0: no clipping", ge=0)
    length_grouping: bool = setting(
        True, "batch records of similar length together, which saves padding"
    )
    device: str = setting("auto", "auto, cpu, cuda or cuda:N; asking for an absent GPU is an error")
    precision: Literal["fp32", "bf16"] = setting("fp32", "bf16: autocast, CUDA only")
    tf32: bool = setting(True, "TF32 matrix products on CUDA")
    gradient_checkpointing: bool = setting(False, "trade time for memory")
    threads: int = setting(
        0, "CPU threads per site; 0: what the simulation assigns", "threads", ge=0, le=1024
    )


class FederationSection(Section):
    """The round loop."""

    rounds: int = setting(4, "rounds of training", "rounds", ge=1, le=100000)
    algorithm: Literal[
        "fedavg", "fedavgm", "fedprox", "scaffold", "fednova", "fedyogi", "fedsam"
    ] = setting("fedavg", "what corrects, weighs or carries on the sites' work, under any method")
    fraction: float = setting(1.0, "share of the sites that train in a round", gt=0, le=1)
    min_sites: int = setting(2, "sites that must be present before round 1", "sites", ge=1)
    min_replies: int = setting(
        0, "valid updates a round needs; 0: all that were asked", "sites", ge=0
    )
    connect_timeout: float = setting(120.0, "longest wait for min-sites", "s", gt=0)
    handshake_timeout: float = setting(900.0, "longest wait for the handshake", "s", gt=0)
    round_timeout: float = setting(1800.0, "longest wait for a round's replies", "s", gt=0)
    max_round_retries: int = setting(2, "repeats of a round with too few replies", ge=0)
    max_payload_mb: float = setting(512.0, "largest update accepted", "MB", gt=0, le=1e6)
    codec: Literal["fp32", "bf16", "int8"] = setting(
        "fp32", "number format of the sites' updates; the model goes to them in fp32"
    )
    error_feedback: bool = setting(
        True, "a site adds to its next update what bf16 or int8 took from its last one"
    )
    held_out: Names = setting("", "sites that never train; the final model is tested there")
    local_only: bool = setting(True, "also train every site alone, for comparison")
    interference: bool = setting(
        False,
        "measure at every site how far the others' updates of the last round move its layers; "
        "costs a message more of the size of an update",
    )
    interference_each: bool = setting(
        False,
        "measure it, and for every single other site as well; each site is told, without names, "
        "to which inputs and how strongly every other's update reacts",
    )
    gsnr: int = setting(
        0,
        "records of every site's probe set on which the gradients' signal to noise ratio is "
        "measured every round; 0: it is not",
        "records",
        ge=0,
    )
    keep_checkpoints: int = setting(2, "newest checkpoints kept", ge=1, le=1000)
    progress_interval: float = setting(5.0, "time between progress lines", "s", gt=0)


class RunConfig(Section):
    """The settings of one run."""

    method: str = setting("subspace-reg", f"one of {', '.join(METHODS)}")
    seed: int = setting(0, "seed of every random choice", ge=0, le=2**31 - 1)
    name: str = setting(
        "",
        "run folder below output-dir; empty: method and time",
        pattern=r"^([A-Za-z0-9_][A-Za-z0-9._-]{0,99})?$",
    )
    output_dir: str = setting("", "where run folders go; empty: runs/ where the run was started")
    resume: str = setting("", "run folder to continue from its newest checkpoint")
    model: ModelSection = Field(default_factory=ModelSection)
    lora: LoraSection = Field(default_factory=LoraSection)
    data: DataSection = Field(default_factory=DataSection)
    train: TrainSection = Field(default_factory=TrainSection)
    federation: FederationSection = Field(default_factory=FederationSection)
    svd: SvdSection = Field(default_factory=SvdSection)
    subspace_reg: SubspaceRegSection = Field(default_factory=SubspaceRegSection)
    dysco: DyscoSection = Field(default_factory=DyscoSection)
    ditto: DittoSection = Field(default_factory=DittoSection)
    pflalign: PflalignSection = Field(default_factory=PflalignSection)
    p2p: P2pSection = Field(default_factory=P2pSection)
    lightyear: LightyearSection = Field(default_factory=LightyearSection)
    fedavgm: FedavgmSection = Field(default_factory=FedavgmSection)
    fedprox: FedproxSection = Field(default_factory=FedproxSection)
    scaffold: ScaffoldSection = Field(default_factory=ScaffoldSection)
    fedyogi: FedyogiSection = Field(default_factory=FedyogiSection)
    fedsam: FedsamSection = Field(default_factory=FedsamSection)
    krum: KrumSection = Field(default_factory=KrumSection)
    multi_krum: MultiKrumSection = Field(default_factory=MultiKrumSection)
    trimmed_mean: TrimmedMeanSection = Field(default_factory=TrimmedMeanSection)
    norm_clip: NormClipSection = Field(default_factory=NormClipSection)
    fltrust: FltrustSection = Field(default_factory=FltrustSection)
    balance: BalanceSection = Field(default_factory=BalanceSection)
    clipping: ClippingSection = Field(default_factory=ClippingSection)
    ubar: UbarSection = Field(default_factory=UbarSection)
    faults: FaultsSection = Field(default_factory=FaultsSection)

    @classmethod
    def from_flat(cls, flat: Mapping[str, Scalar]) -> RunConfig:
        """Build and validate a config from dotted kebab-case keys.

        Raises
        ------
        ConfigError
            Naming the key, the received value and what is allowed; for an unknown key, the nearest
            valid one.
        """
        known = {setting.key for setting in settings()}
        nested: dict[str, Any] = {}
        for key, value in flat.items():
            if key not in known:
                raise ConfigError(f"unknown setting {_shown(key)}{_suggestion(key, known)}")
            section, dot, name = key.partition(".")
            if dot:
                nested.setdefault(section, {})[name] = value
            else:
                nested[key] = value
        try:
            config = cls.model_validate(nested)
        except ValidationError as error:
            raise ConfigError(_sentence(error)) from None
        config._check_relations()
        return config

    @classmethod
    def from_toml(cls, path: Path, overrides: Mapping[str, Scalar] | None = None) -> RunConfig:
        """Read a TOML file of settings (nested tables or dotted keys) and apply overrides."""
        return cls.from_flat({**read_toml(path), **(overrides or {})})

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        """Rebuild a config from `to_json`, as a site does with what the coordinator sent."""
        try:
            flat = json.loads(text)
        except (ValueError, RecursionError) as error:  # syntax, an absurd number, absurd nesting
            raise ConfigError(f"the settings are not valid JSON: {error}") from None
        if not isinstance(flat, dict):
            raise ConfigError(f"the settings must be a JSON object, got {type(flat).__name__}")
        return cls.from_flat(flat)

    def to_flat(self) -> dict[str, Scalar]:
        """Return every setting as a flat dict of Flower scalars."""
        return {s.key: _scalar(s.value) for s in settings(self)}

    def changed(self) -> dict[str, Scalar]:
        """Return what differs from the defaults; `from_flat` makes the same settings of it."""
        defaults = RunConfig().to_flat()
        return {key: value for key, value in self.to_flat().items() if value != defaults[key]}

    def to_json(self) -> str:
        """Return `to_flat` as JSON."""
        return json.dumps(self.to_flat())

    def with_changes(self, changes: Mapping[str, Scalar]) -> RunConfig:
        """Return a validated copy with some dotted keys changed."""
        return self.from_flat({**self.to_flat(), **changes})

    def digest(self) -> str:
        """SHA-256 of every setting that what a round computes depends on, see `NEUTRAL`."""
        kept = {key: value for key, value in self.to_flat().items() if key not in NEUTRAL}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()

    def _check_relations(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(
                f"unknown method {_shown(self.method)}{_suggestion(self.method, set(METHODS))}"
            )
        check_relations(self)


class Setting(BaseModel):
    """One setting as a row of documentation."""

    key: str
    value: Any
    default: Any
    unit: str
    description: str
    constraint: str


def settings(config: RunConfig | None = None) -> Iterator[Setting]:
    """Yield every setting, in order, with its value in ``config`` (default: the defaults)."""
    config = config if config is not None else RunConfig()
    for name, field in RunConfig.model_fields.items():
        value = getattr(config, name)
        if isinstance(value, Section):
            for inner, info in type(value).model_fields.items():
                yield _row(f"{_alias(name)}.{_alias(inner)}", info, getattr(value, inner))
        else:
            yield _row(_alias(name), field, value)


def read_toml(path: Path) -> dict[str, Scalar]:
    """Read a TOML file into flat dotted keys.

    Raises
    ------
    ConfigError
        If the file is missing or not TOML, or a name in a list holds a comma.
    """
    try:
        return flatten(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ConfigError(f"settings file not found: {path}") from None
    # Not TOML, not UTF-8, a number of thousands of digits, absurd nesting
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"settings file {path} cannot be read: {error}") from None


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Turn nested tables into dotted keys; a list becomes a comma-separated string.

    Raises
    ------
    ConfigError
        If a name in a list holds a comma: it would come out as two names.
    """
    flat: dict[str, Scalar] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
            continue
        if isinstance(value, list) and any("," in str(part) for part in value):
            raise ConfigError(
                f"setting {_shown(prefix + key)}: a name holds a comma, which separates names "
                "there; "
                "rename it, in the data too"
            )
        flat[f"{prefix}{key}"] = _scalar(value)
    return flat


def _alias(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _scalar(value: Any) -> Scalar:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return value  # type: ignore[no-any-return]


def _row(key: str, field: FieldInfo, value: Any) -> Setting:
    extra = field.json_schema_extra
    unit = str(extra.get("unit", "")) if isinstance(extra, dict) else ""
    return Setting(
        key=key,
        value=value,
        default=split(field.default) if isinstance(value, tuple) else field.default,
        unit=unit,
        description=field.description or "",
        constraint=_constraint(field),
    )


def _constraint(field: FieldInfo) -> str:
    options = getattr(field.annotation, "__args__", ())
    if options and all(isinstance(option, str) for option in options):
        return " | ".join(options)
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    parts = [
        f"{sign} {getattr(bound, name)}"
        for bound in field.metadata
        for name, sign in signs.items()
        if getattr(bound, name, None) is not None
    ]
    return ", ".join(parts)


def _suggestion(key: str, known: set[str]) -> str:
    # The right name in no section or in the wrong one is the commonest slip.
    same = [k for k in sorted(known) if k.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
    near = difflib.get_close_matches(key, same or sorted(known), n=1, cutoff=0.0 if same else 0.4)
    return f"; did you mean '{near[0]}'?" if near else "; see `fedapp config show`"


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(_alias(str(part)) for part in first["loc"])
    return f"setting '{key}': {first['msg']}, got {_shown(first['input'])}"


def _shown(value: Any) -> str:
    """Return a value as it is written in Python, cut where it is too long for a sentence."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python prints no number of thousands of digits
        return f"a {type(value).__name__} that is too large to print"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
