"""The device a site trains on, never silently replaced by another."""

from __future__ import annotations

import re

import torch

from fedapp.config import RunConfig
from fedapp.errors import ConfigError, DeviceError


def resolve_device(name: str) -> torch.device:
    """Return the device for ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises
    ------
    ConfigError
        If the name is none of these.
    DeviceError
        If the GPU asked for is absent.
    """
    match = re.fullmatch(r"auto|cpu|cuda(?::(\d+))?", name)
    if match is None:
        raise ConfigError(f"train.device is '{name}', expected auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and count == 0):
        return torch.device("cpu")
    if count == 0:
        reason = (
            "no working driver and GPU were found"
            if torch.version.cuda
            else "the installed PyTorch is built for CPUs only"
        )
        raise DeviceError(
            f"train.device is '{name}' but no GPU can be used: {reason}; fix that, or set "
            "train.device to auto or cpu; plain `flwr run` hides every GPU from the sites without "
            "--federation-config 'client-resources-num-gpus=1.0'"
        )
    index = int(match.group(1) or 0)
    if index >= count:
        raise DeviceError(
            f"train.device is '{name}' but this machine has {count} GPU(s), "
            f"cuda:0 to cuda:{count - 1}"
        )
    return torch.device("cuda", index)


def device_for(config: RunConfig) -> torch.device:
    """Return the device for these settings, having checked that it can do what they ask.

    Raises
    ------
    ConfigError
        If the name of the device is malformed.
    DeviceError
        If the device is absent, or bf16 or 4-bit is asked for and it has none.
    """
    device = resolve_device(config.train.device)
    if device.type == "cpu":
        if config.model.quantization != "none":
            raise DeviceError(
                f"model.quantization is '{config.model.quantization}', which needs a CUDA "
                "device, but the device is the CPU; set model.quantization to none"
            )
        if config.train.precision == "bf16":
            raise DeviceError(
                "train.precision is 'bf16', which needs a CUDA device, but the device is the "
                "CPU; set train.precision to fp32"
            )
    elif config.train.precision == "bf16":
        with torch.cuda.device(device):
            if not torch.cuda.is_bf16_supported(including_emulation=False):
                raise DeviceError(
                    f"{torch.cuda.get_device_name(device)} cannot compute in bf16; "
                    "set train.precision to fp32"
                )
    return device


def describe_device(device: torch.device) -> str:
    """Return a short line such as ``cpu, 2 threads`` or ``cuda:0, NVIDIA H200``."""
    if device.type == "cpu":
        return f"cpu, {torch.get_num_threads()} threads"
    return f"{device}, {torch.cuda.get_device_name(device)}"
