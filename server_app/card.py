"""The model card of the exported adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fedapp
from fedapp.config import RunConfig
from fedapp.exchange import SiteDescription
from fedapp.faults import rehearsal
from fedapp.how_to_load import loading_code
from fedapp.registry import ALGORITHMS, METHODS
from fedapp.tasks import columns, task_info

LINE = "\n"


def model_card(config: RunConfig, site: SiteDescription, summary: Mapping[str, Any]) -> str:
    """Return the Markdown of ``adapter/README.md``.

    Parameters
    ----------
    config : RunConfig
    site : SiteDescription
        Any site's; what is taken from it is the same everywhere.
    summary : mapping
        Content of ``summary.json``.
    """
    base = str(site.peft_config.get("base_model_name_or_path") or site.base_model)
    whole = config.model.trainable == "all"
    code = loading_code(
        task_info(config),
        site.peft_config,
        whole=whole,
        base=f'"{base}"',
        outputs=len(site.label_map),
        folder="path/to/this/folder",
    )
    targets = ", ".join(config.lora.targets)
    rank = f"rank {config.lora.rank}, alpha {config.lora.alpha:g}, on {targets}"
    if export := summary.get("export"):
        rank = (
            f"rank {export['rank']}, alpha {export['rank']}, on {targets}: the sum of all rounds, "
            f"with a relative error of {export['relative_error']:.2g}"
        )
    if whole:
        rank = "every weight"
    names = ", ".join(f"{number} = {label}" for number, label in enumerate(site.label_map))
    algorithm = config.federation.algorithm
    return f"""---
{"" if whole else f"library_name: peft{LINE}"}base_model: {base}
tags: [{"" if whole else "lora, "}federated-learning, fedapp, {config.method}]
---

# {summary["name"]}: {_what(config)} trained by {len(summary["sites"])} sites together

No record left any site: the sites exchanged {"weights" if whole else "adapters"} of \
{config.model.source} and their metrics.
{_rehearsal(config)}{_personal(config)}
| | |
|---|---|
| method | `{config.method}`: {METHODS[config.method].summary} |
| algorithm | `{algorithm}`: {ALGORITHMS[algorithm].summary} |
| base model | `{site.base_model}`, digest `{site.base_model_digest}` |
| {"trained" if whole else "adapter"} | {rank} |
| task | {config.model.task}{f"; labels: {names}" if names else ""} |
| rounds | {config.federation.rounds}, seed {config.seed} |
| sites | {len(summary["sites"])} trained, {len(summary["held_out"])} held out |
| software | fedapp {fedapp.__version__} |

## Test metrics

Of this {"model" if whole else "adapter"} as every site received it at the end (`received`), of \
each site's own model after its last local training, before the last merge (`personal`), and of a \
model that the site trained alone (`local-only`). Each site counts the same.

{_metrics(summary, config)}
Measured on each site's own test records. Small test sets make these numbers uncertain, and nothing
here says that the model is fit for any clinical use.

## How to load

```python
{code}
```

## Licence

{_what(config)[:1].upper()}{_what(config)[1:]} is a derived work of its base model and of the \
records it was trained on: the licence of
`{site.base_model}` and the sites' data agreements apply. The software is Apache-2.0.
"""


def _rehearsal(config: RunConfig) -> str:
    """Say that sites attacked on purpose, if they did."""
    told = rehearsal(config)
    return f"\n**{told}.**\n" if told else ""


def _what(config: RunConfig) -> str:
    return "a whole model" if config.model.trainable == "all" else "a LoRA adapter"


def _personal(config: RunConfig) -> str:
    """Say what is missing in the adapter of a method that has no one model."""
    offset, own = METHODS[config.method].offset, METHODS[config.method].personal
    if offset and config.pflalign.personalisation:
        return f"""
**This is the shared model.** With `{config.method}` each site uses it with {offset}, which
stays there; the metrics below, `received` included, are those of the models with the offsets.
"""
    if not own:
        return ""
    return f"""
**This is the shared part alone.** With `{config.method}` {own} are each site's own and never left
it; in their place here stand the numbers that training began with. It is a start for a site that
trains its own, not a model to predict with; the metrics below are those of the sites' own models.
"""


def _metrics(summary: Mapping[str, Any], config: RunConfig) -> str:
    shown, known = columns(config), task_info(config).metrics
    heads = [known[name].name for name in shown]
    lines = [f"| phase | {' | '.join(heads)} | worst site |", "|---|" + "---|" * (len(shown) + 1)]
    for phase, mean in summary["mean"].items():
        cells = [f"{mean[name]:.3f}" if name in mean else "-" for name in shown]
        worst = summary["worst"].get(phase, {})
        place = f"{worst.get('site', '-')} ({worst[shown[0]]:.3f})" if shown[0] in worst else "-"
        lines.append(f"| {phase} | {' | '.join(cells)} | {place} |")
    for site, phases in summary["held_out"].items():
        value = phases.get("received", {}).get(shown[0])
        if value is not None:
            lines.append(f"| received, held out {site} | {value:.3f} |{' |' * len(shown)}")
    return "\n".join(lines) + "\n"
