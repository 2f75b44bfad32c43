"""What colluding attackers know: the updates of the honest sites, computed from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from client_app.site import Site
from fedapp.adapter import Adapter
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.exchange import Instruction, Reply
from fedapp.increments import add


@dataclass
class Spy:
    """What the honest sites send in a round, for attackers that collude.

    A simulation's process has every site's records. The attackers compute the honest updates of
    this very round anew, by the honest sites' own code, from what they received themselves: the
    strongest adversary of the papers, and no honest site has to show anything. It costs as much
    training as the honest sites do, once a round and process.

    Attributes
    ----------
    honest : mapping of str to Site
        Empty at a deployed node.
    """

    honest: Mapping[str, Site]
    _of: object = None
    _models: list[Adapter] = field(default_factory=list)

    def models(self, instruction: Instruction, start: Adapter) -> list[Adapter]:
        """Return the honest models, sorted by site.

        Raises
        ------
        ConfigError
            If there is no other site in this process, or their updates cannot be computed from
            outside because they keep something between their rounds.
        """
        if not self.honest:
            raise ConfigError(
                "this attack is computed from the honest sites' updates, which only a simulation "
                "knows; choose another faults.attack"
            )
        key = (instruction.round, instruction.config, start.digest())
        if self._of != key:
            self._models = [
                self._model(name, site, instruction, start)
                for name, site in sorted(self.honest.items())
            ]
            self._of = key
        return self._models

    def _model(self, name: str, site: Site, instruction: Instruction, start: Adapter) -> Adapter:
        asked = replace(
            instruction, site=name, splits=(), personal_splits=(), progress_file="", run="",
            state_folder="",
        )  # fmt: skip
        reply = site.execute(asked)
        if reply.failure is not None:
            raise ConfigError(
                f"this attack needs what site {name} sends, which cannot be computed from outside "
                f"({reply.failure.message}); choose another faults.attack"
            )
        return model_of(reply, start, instruction.config)


def model_of(reply: Reply, start: Adapter, config: RunConfig) -> Adapter:
    """Return the model that a reply's payload makes the coordinator see."""
    sent = reply.payloads["adapter"].unpack()
    return sent if config.federation.codec == "fp32" else add(start, sent)
