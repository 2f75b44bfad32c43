"""Seeded damage to bytes, JSON values and JSON text, as a broken or hostile sender would do it."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

NUMBERS = [
    0, 1, -1, 2, 7, 64, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**40, 10**400,
    0.0, -0.0, 0.5, 1e-320, 1e15, 1e16, 1e308, float("nan"), float("inf"), -float("inf"),
]  # fmt: skip
TEXTS = [
    "", " ", "0", "1", "nan", "None", "fp32", "int8", "train", "A", "é", "e\u0301", "\x00", "\n",
    "\x1b[2J", "\u202e", "\u2028", "\ud800", "\U0001f600", "../../etc/passwd", "x" * 101,
    "x" * 600, "y" * 20_000, "adapter", "layer.0.query.lora_A", "__class__", "%s{0}", "<b>",
]  # fmt: skip
SMALL = [None, True, False, [], {}, [[]], [{}], {"": None}, [1, 2, 3], {"a": {"b": [1]}}]
RAW = ["NaN", "-Infinity", "1e999", "9" * 400, "9" * 5000, "[" * 2000, '{"a":' * 2000, "\\ud800",
       '"', "{", "}", ",", ":", "null", "\x00", "\ufeff", " " * 2000, "-", "0x1", "'"]  # fmt: skip
_NESTED = re.compile(r'"<nested (\d+)>"')


def any_value(rng: random.Random, depth: int = 0) -> Any:
    """Draw any JSON value, odd ones more often than plain ones."""
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(NUMBERS)
    if kind < 0.65:
        return rng.choice(TEXTS)
    if kind < 0.85 or depth > 2:
        return copy.deepcopy(rng.choice(SMALL))
    if kind < 0.92:
        return [any_value(rng, depth + 1) for _ in range(rng.randrange(5))]
    if kind < 0.95:
        return nested(rng.choice([3, 50, rng.randrange(800, 990)]))
    return {str(rng.choice(TEXTS)): any_value(rng, depth + 1) for _ in range(rng.randrange(4))}


def nested(depth: int) -> str:
    """Stand for lists within lists, which `dump` writes: Python itself cannot write as many."""
    return f"<nested {depth}>"


def dump(value: Any) -> str:
    """Write a value as JSON."""
    return _NESTED.sub(lambda found: "[" * int(found[1]) + "]" * int(found[1]), json.dumps(value))


def mutate_value(rng: random.Random, value: Any) -> Any:
    """Change, remove, rename, repeat or add one thing somewhere within a JSON value, in place."""
    if isinstance(value, dict) and value and rng.random() < 0.92:
        key, action = rng.choice(list(value)), rng.random()
        if action < 0.08:
            del value[key]
        elif action < 0.16:
            value[rng.choice([*TEXTS, key + "x", key.upper()])] = value.pop(key)
        elif action < 0.24:
            value[rng.choice(TEXTS)] = any_value(rng)
        else:
            value[key] = mutate_value(rng, value[key])
        return value
    if isinstance(value, list) and value and rng.random() < 0.85:
        index, action = rng.randrange(len(value)), rng.random()
        if action < 0.1:
            value.insert(index, value[index])
        elif action < 0.2:
            del value[index]
        elif action < 0.25:
            value.extend(value * rng.choice([1, 10, 200]))
        else:
            value[index] = mutate_value(rng, value[index])
        return value
    if type(value) is int and rng.random() < 0.5:
        return value + rng.choice([-1, 1, 8, 1000])
    if type(value) is float and rng.random() < 0.5:
        return value * rng.choice([-1.0, 0.0, 0.5, 2.0, 1e6, 1 + 1e-9])
    if isinstance(value, str) and value and rng.random() < 0.5:
        return mutate_text(rng, value)
    return any_value(rng)


def mutate_text(rng: random.Random, text: str) -> str:
    """Change a few characters, or put something odd in their place."""
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        start = rng.randrange(len(text) + 1)
        stop = min(len(text), start + rng.choice([0, 0, 1, 1, 3, 40]))
        new = rng.choice(["", chr(rng.randrange(1, 128)), rng.choice(RAW), rng.choice(TEXTS)])
        text = text[:start] + new + text[stop:]
    return text


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Flip bits, overwrite, cut, repeat, extend, or replace everything."""
    changed = bytearray(data)
    action = rng.random()
    if action < 0.1:
        return bytes(changed[: rng.randrange(len(changed) + 1)])
    if action < 0.15:
        return bytes(changed) + rng.randbytes(rng.choice([1, 3, 4, 64, 4096]))
    if action < 0.18:
        return rng.randbytes(rng.choice([0, 1, len(changed), 2 * len(changed)]))
    for _ in range(rng.choice([1, 1, 1, 2, 10])):
        if not changed:
            break
        where, action = rng.randrange(len(changed)), rng.random()
        if action < 0.45:
            changed[where] ^= 1 << rng.randrange(8)
        elif action < 0.75:
            changed[where] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        elif action < 0.88:
            del changed[where : where + rng.choice([1, 4, 5, 100])]
        else:
            changed[where:where] = changed[: rng.choice([1, 4, 5, 100])]
    return bytes(changed)


def twice(rng: random.Random, text: str) -> str:
    """Write one of the keys of a JSON object a second time."""
    fields = json.loads(text)
    if not isinstance(fields, dict) or not fields:
        return text
    key = rng.choice(list(fields))
    value = fields[key] if rng.random() < 0.5 else any_value(rng)
    return f"{text[:-1]}, {dump(key)}: {dump(value)}}}"
