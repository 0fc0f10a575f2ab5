"""What `import torch` runs, through the entry point group `torch.backends`.

An exception here would make `import torch` fail for people who may not even use the device, so nothing leaves this
module: a problem is kept as one message, which torch.accel raises at the first use of the device. For the same reason
nothing here opens a device, prints, or imports anything heavy.
"""

import functools
import importlib
import os
import sys

import torch

from torch_accel import accel, backends, config

_INTERNAL_PATHS = tuple(os.path.dirname(str(module.__file__)) + os.sep for module in (torch, accel))
_REBUILD = (
    "build it for this torch, in the source folder: pip install --no-build-isolation --force-reinstall --no-deps ."
)
_done = False


def _autoload() -> None:
    """Make torch know the device `accel`. Never raises; a second call does nothing."""
    global _done
    if _done:
        return
    _done = True
    try:
        _register()
    except Exception as error:
        accel._problem = f"torch_accel: registration: expected success, got {type(error).__name__}: {error}"


def _register() -> None:
    owner = torch._C._get_privateuse1_backend_name()
    if owner != "privateuseone":
        accel._problem = (
            f"torch_accel: device accel: expected torch's one slot for out-of-tree devices (PrivateUse1) to be free, "
            f"got one that another package has named {owner!r} (uninstall one of the two packages, or set "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 and import the one you want)"
        )
        if not hasattr(torch, "accel"):
            torch.accel = accel  # type: ignore[attr-defined]
        return

    accel._problem = _build_problem()
    if accel._problem is None:
        try:
            accel._extension = importlib.import_module("torch_accel._C")
        except Exception as error:
            accel._problem = (
                f"torch_accel: extension torch_accel._C: expected it to load, got {type(error).__name__}: {error} "
                f"({_REBUILD})"
            )

    # Also with a problem: torch must know the name, or the first use of the device never gets as far as our message.
    torch.utils.rename_privateuse1_backend("accel")
    torch._register_device_module("accel", accel)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    _teach_dlpack()
    # Torch's list of what a parameter without a shape yet may do, where Tensor.cuda and its like stand.
    torch.nn.parameter.UninitializedTensorMixin._allowed_methods.append(torch.Tensor.accel)  # type: ignore[attr-defined]

    if accel._extension is not None:
        accel._extension.set_resolver(_resolve)
        accel._extension.set_source_hook(_user_source)
        try:
            accel._extension.set_fallback(config.get("fallback"))
        except ValueError as error:
            accel._problem = str(error)


def _teach_dlpack() -> None:
    """The one method of torch's that is replaced.

    COMPAT(every torch so far): Tensor.__dlpack_device__ looks for the device type "privateuse1", which no device has once
    it is named, so torch.from_dlpack(tensor) would raise. Remove when torch compares with the backend's name.
    """
    original = torch.Tensor.__dlpack_device__

    @functools.wraps(original)
    def __dlpack_device__(self: torch.Tensor) -> tuple:
        if self.device.type != "accel":
            return original(self)
        return torch.utils.dlpack.DLDeviceType.kDLExtDev, self.device.index

    torch.Tensor.__dlpack_device__ = __dlpack_device__  # type: ignore[method-assign]


def _build_problem() -> str | None:
    """Why the extension must not be loaded. Another torch minor would mean an undefined symbol, or worse."""
    try:
        built = importlib.import_module("torch_accel._build_info").TORCH_VERSION
    except ImportError:
        return f"torch_accel: extension torch_accel._C: expected a built package, got sources only ({_REBUILD})"
    except Exception as error:  # a file that was not written to its end
        return f"torch_accel: torch_accel._build_info: expected it to load, got {type(error).__name__}: {error} ({_REBUILD})"
    running = str(torch.__version__)
    if built.split(".")[:2] != running.split(".")[:2]:
        return (
            f"torch_accel: extension torch_accel._C: expected torch {'.'.join(built.split('.')[:2])}, which it was "
            f"built for, got torch {running} ({_REBUILD})"
        )
    return None


def _resolve() -> list[dict]:
    if accel._problem is not None:
        raise RuntimeError(accel._problem)
    return backends.device_table()


def _user_source() -> str:
    """`file:line` of the innermost Python frame outside torch and torch_accel; the extension counts fallbacks by it."""
    frame = sys._getframe()
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_INTERNAL_PATHS) and not path.startswith("<frozen"):
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    # Backward may run in a thread of torch's own, where no Python code waits for it.
    return "(no Python frame)"
