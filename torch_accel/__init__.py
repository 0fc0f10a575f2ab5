"""torch_accel: one PyTorch device, `accel`, for every accelerator.

`import torch` is enough to have `device="accel"` and `torch.accel`; this package is imported for what torch has no
place for: which operators fell back to the CPU, and whether they may.
"""

from types import TracebackType
from typing import Any

import torch  # noqa: F401  (first: its own import may come back here through the entry point)

from torch_accel import _autoload, accel, config

__all__ = ["counters", "fallback", "reset_counters"]

_autoload._autoload()


class fallback:
    """Set what happens when a backend lacks an operator, so that the CPU would have to run it.

    policy  "warn"   run it on the CPU, warn once per operator (the default)
            "allow"  run it on the CPU
            "error"  raise NotImplementedError

    The policy holds for the whole process, at once: a backward pass runs in threads of torch's own, which a setting of
    the calling thread would not reach. As a context manager it puts the previous policy back at the end.

    Raises ValueError for another policy.
    """

    def __init__(self, policy: str) -> None:
        if policy not in config.FALLBACK_POLICIES:
            raise ValueError(
                f"torch_accel: fallback: expected one of {', '.join(config.FALLBACK_POLICIES)}, got {policy!r}"
            )
        extension = accel._require_extension()
        self._previous: str = extension.get_fallback()
        extension.set_fallback(policy)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        accel._require_extension().set_fallback(self._previous)


def counters() -> dict[str, Any]:
    """What has happened since the start or the last `reset_counters`, as plain dicts:

    "fallbacks"  {operator: {"count": calls, "bytes": bytes copied, "sources": {"file:line": calls}}}
    "copies"     {"host_to_device" | "device_to_host" | "device_to_device": {"count": calls, "bytes": bytes}}
    """
    return accel._require_extension().counters()


def reset_counters() -> None:
    """Set all counters to zero."""
    accel._require_extension().reset_counters()
