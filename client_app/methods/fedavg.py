"""Client half of `fedavg`: train A, B and the head with the task's loss alone."""

from __future__ import annotations

from client_app.methods.base import LocalRule


class FedAvg(LocalRule):
    """Plain local training (McMahan et al. 2017)."""
