"""Every knob of torch_accel in one table. No other Python module reads the environment.

A knob's `stage` says when its value is read:
    "import"      once, when torch_accel is loaded (by `import torch`);
    "first use"   once, when the device table is built, which is the first time a device is counted or used.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FALLBACK_POLICIES = ("warn", "allow", "error")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _policy(text: str) -> str:
    if text not in FALLBACK_POLICIES:
        raise ValueError(f"expected one of {', '.join(FALLBACK_POLICIES)}, got {text!r}")
    return text


@dataclass(frozen=True)
class Knob:
    """One setting: its name in Python, its environment variable, and how its text becomes a value."""

    name: str
    env: str
    kind: str
    default: str
    stage: str
    doc: str
    parse: Callable[[str], Any]

    @property
    def is_set(self) -> bool:
        """True if a program or the environment gives the knob a value of its own."""
        return self.name in _overrides or bool(os.environ.get(self.env))

    @property
    def text(self) -> str:
        """The value as text, before it is parsed. An empty environment variable counts as unset."""
        return _overrides.get(self.name) or os.environ.get(self.env) or self.default


_overrides: dict[str, str] = {}

KNOBS: dict[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob(
            name="backend",
            env="TORCH_ACCEL_BACKEND",
            kind="comma list of backend names",
            default="",
            stage="first use",
            doc="Backends whose devices become accel:0, accel:1, ... in this order; empty: the best one available.",
            parse=_names,
        ),
        Knob(
            name="fallback",
            env="TORCH_ACCEL_FALLBACK",
            kind="warn | allow | error",
            default="warn",
            stage="import",
            doc="What happens when a backend lacks an operator and the CPU would have to run it.",
            parse=_policy,
        ),
    )
}


def get(name: str) -> Any:
    """Parsed value of a knob. Raises ValueError, naming the variable, if its text makes no sense."""
    knob = KNOBS[name]
    try:
        return knob.parse(knob.text)
    except ValueError as error:
        raise ValueError(f"torch_accel: {knob.env}: {error} (correct the variable, or unset it)") from None


def override(name: str, text: str) -> None:
    """Give a knob a value that wins over the environment, for programs that have a command line of their own.

    It must come before the knob's stage: later it changes nothing. Raises ValueError if the text makes no sense.
    """
    knob = KNOBS[name]
    try:
        knob.parse(text)
    except ValueError as error:
        raise ValueError(f"torch_accel: config.override({name!r}): {error}") from None
    _overrides[name] = text
