"""How far local steps of one unit of gradient each would go, whatever the gradient's direction."""

from __future__ import annotations

from fedapp.config import TrainSection


class Accumulation:
    """The displacement that a gradient of one at every step would give.

    With SGD of momentum rho, ``v <- rho v + g`` and ``w <- w - eta v``. For ``g = 1`` and a
    constant rate, w has moved after tau steps by

        eta (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho),

    and without momentum by ``eta tau``. AdamW takes steps of about eta whatever the gradient's
    size; there every step counts ``eta``.

    Attributes
    ----------
    count : int
        Steps.
    displacement : float
        In units of the learning rate times the gradient.
    """

    def __init__(self, train: TrainSection) -> None:
        self._momentum = train.momentum if train.optimizer == "sgd" else 0.0
        self._velocity = 0.0
        self.count = 0
        self.displacement = 0.0

    def add(self, learning_rate: float) -> None:
        """Take one more step."""
        self._velocity = self._momentum * self._velocity + 1.0
        self.displacement += learning_rate * self._velocity
        self.count += 1
