"""What the coordinator asks of a site and what a site answers, independent of any transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from fedapp.codec import Packed
from fedapp.config import RunConfig, Scalar
from fedapp.text import site_name

Metrics = Mapping[str, float]
SiteName = Annotated[str, AfterValidator(site_name)]
RunIdentity = Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")]
Count = Annotated[int, Field(ge=0, le=10**9)]


class Action(StrEnum):
    """What a site can be asked to do."""

    DESCRIBE = "describe"  # answer with a SiteDescription
    INITIAL = "initial"  # send the seeded initial adapter
    BASES = "bases"  # send bases of what the received model's activations do not use
    PUBLISH = "publish"  # train the site's own model, and put it in the site's mailbox
    MIX = "mix"  # mix the own model with those in the mailbox, and evaluate
    TRAIN = "train"  # evaluate what was received, train, evaluate, send the update
    LOCAL_ONLY = "local-only"  # train alone for the whole run's budget; nothing but metrics leaves
    EVALUATE = "evaluate"  # evaluate what was received


@dataclass(frozen=True)
class Instruction:
    """One request to one site.

    Attributes
    ----------
    action : Action
    site : str
        Name of the site.
    config : RunConfig
        The run's settings, validated again by the site.
    round : int
        Round, from 1; 0 before the first.
    payloads : mapping of str to Packed
        ``"adapter"`` is the model; a method may add others.
    settings : mapping of str to scalar
        Numbers that a strategy sends to its client half this round.
    splits : tuple of str
        Splits to evaluate on: ``"validation"``, ``"test"``.
    personal_splits : tuple of str
        For TRAIN, splits to evaluate the personal model on besides ``splits``.
    progress_file : str
        In a simulation, a file on the shared disk for progress events; else empty.
    run : str
        Identity of the run, 32 hexadecimal digits: drawn when it begins, kept when it is resumed.
        Empty if nobody keeps it (Flower's own loop): sites then keep nothing between rounds.
    state_folder : str
        In a simulation, the folder for what sites keep between rounds; else the site's own.
    """

    action: Action
    site: str
    config: RunConfig
    round: int = 0
    payloads: Mapping[str, Packed] = field(default_factory=dict)
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    splits: tuple[str, ...] = ("validation",)
    personal_splits: tuple[str, ...] = ()
    progress_file: str = ""
    run: str = ""
    state_folder: str = ""


@dataclass(frozen=True)
class Failure:
    """Why a site could not do what it was asked: a sentence that is safe to leave the building."""

    kind: str  # name of the FedappError class, or "UnexpectedError"
    message: str
    reason: str = ""  # of a refusal, its machine-readable name


@dataclass(frozen=True)
class Reply:
    """A site's answer.

    Attributes
    ----------
    site, round, action
        As in the instruction.
    payloads : mapping of str to Packed
        ``"adapter"`` is the update; empty for actions that send none.
    metrics : mapping of str to mapping
        ``{"received/validation": {"accuracy": ..., "loss": ..., "examples": ...}}``; the phase is
        ``received``, ``personal`` or ``local-only``, then the split.
    weight : float
        Weight in the merge: number of training examples.
    numbers : mapping of str to float
        ``train_loss``, ``steps``, ``training_seconds``, ``seconds``, what a method reports, and, of
        a site that keeps something between its rounds, ``state_round``: the round whose state it
        continued from; 0: it found none.
    description : dict
        For DESCRIBE, a `SiteDescription` as JSON-able dict.
    failure : Failure or None
    """

    site: str
    round: int
    action: Action
    payloads: Mapping[str, Packed] = field(default_factory=dict)
    metrics: Mapping[str, Metrics] = field(default_factory=dict)
    weight: float = 0.0
    numbers: Metrics = field(default_factory=dict)
    description: dict[str, Any] = field(default_factory=dict)
    failure: Failure | None = None


class SiteDescription(BaseModel):
    """What a site tells in the handshake; no record and no label count leaves."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    site: SiteName
    package_version: str
    base_model: str
    base_model_digest: str
    layout_digest: str
    initial_digest: str
    rank: int
    alpha: float
    targets: list[str]
    heads: list[str]
    dtype: str
    task: str
    label_map: list[str]
    examples: dict[str, Count] = Field(max_length=16)  # split -> number of records
    device: str
    threads: int
    torch_version: str
    clock: float  # Unix seconds at the site
    peft_config: dict[str, Any]  # adapter_config.json of the exported adapter
    notes: list[str]  # e.g. "3 duplicate records were dropped"
    defaults_digest: str = ""  # of this version's default settings: messages lack those
    data_digest: str = ""  # salted digest of the records; empty: not known
