"""Whether a site's models can be compared as the settings say: asked before anybody trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from client_app.views import Items, Viewer
from fedapp.config import RunConfig
from fedapp.peer_rules.agreement import check_size
from fedapp.registry import METHODS

if TYPE_CHECKING:
    from client_app.models import ResidentModel


def check_comparable(
    resident: ResidentModel, validation: Callable[[], Items], config: RunConfig, site: str
) -> None:
    """Refuse settings of a method without a coordinator that would fail after round 1's training.

    Parameters
    ----------
    resident : ResidentModel
        Where a kernel's size depends on the settings, it holds the seeded first model afterwards.
    validation : callable
        Prepares the records on which models are compared; not called if no size depends on them.
    config : RunConfig
    site : str

    Raises
    ------
    ConfigError
        If the task does not say what its last layer is, or a ``softmax-full`` kernel of the site's
        own rows would be too large.
    """
    if not METHODS[config.method].peer_rule:
        return
    if config.method != "lightyear" or config.lightyear.effective().agreement != "softmax-full":
        Viewer(resident, [], config, site)
        return
    viewer = Viewer(resident, validation(), config, site)
    check_size(viewer(resident.parameters.initial(config.seed)), "softmax-full")
