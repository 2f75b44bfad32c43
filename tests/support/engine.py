"""The container engine's own command, as tests call it."""

from __future__ import annotations

import json
import subprocess
from typing import Any

LONGEST = 120.0  # seconds; no command of a test takes so long


class EngineError(AssertionError):
    """The engine refused a command; its words are the message."""


def docker(
    *arguments: str, check: bool = True, timeout: float = LONGEST, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``docker ...`` and return what it said.

    Raises
    ------
    EngineError
        If it ends with another exit code than 0, unless ``check`` is False.
    """
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=timeout, input=stdin
    )
    if check and done.returncode:
        raise EngineError(f"docker {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done


def answers() -> bool:
    """Whether an engine is running here."""
    try:
        return docker("info", check=False, timeout=20).returncode == 0
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False


def has_image(name: str) -> bool:
    """Whether the engine has an image of that name."""
    return docker("image", "inspect", name, check=False).returncode == 0


def inspect(container: str) -> dict[str, Any]:
    """Return all that the engine knows about a container."""
    found: dict[str, Any] = json.loads(docker("inspect", container).stdout)[0]
    return found


def containers(**labels: str) -> list[str]:
    """Return the ids of all containers with these labels of compose, running or not."""
    wanted = [f"--filter=label=com.docker.compose.{key}={value}" for key, value in labels.items()]
    return docker("ps", "--all", "--quiet", "--no-trunc", *wanted).stdout.split()
