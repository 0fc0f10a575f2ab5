"""What the tests share: the device to compare with, moving arguments, comparing results, and subprocesses."""

import copy
import functools
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap

import torch

import torch_accel

SEED = 20


# ------------------------------------------------------------------------------------------------ the same on two devices
@functools.cache
def reference() -> torch.device:
    """The native device whose kernels accel:0 runs. Its results are what accel's have to equal bit for bit."""
    return torch.device(torch.accel.get_device_properties(0).native_device)


def moved(value, device):
    """A copy of `value` on `device`: fresh leaf tensors, deep copies of modules, containers rebuilt."""
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).to(device)
    if isinstance(value, torch.Tensor):
        return value.detach().to(device, copy=True).requires_grad_(value.requires_grad)
    if isinstance(value, (tuple, list)):
        items = [moved(item, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    return value


def same(actual, expected, where="result", rtol=0.0, atol=0.0):
    """Assert that two results agree in type, dtype, layout, shape, strides and values, to the bit unless tolerances are
    given (NaN equals NaN). `actual` is the one from accel: every tensor in it has to be there if the other is not on the
    CPU by its nature, which is the caller's to check with `on_accel`."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor), f"{where}: got {type(actual)}, expected a tensor"
        assert actual.layout == expected.layout, f"{where}: layout {actual.layout}, expected {expected.layout}"
        if expected.layout == torch.strided:
            assert actual.stride() == expected.stride(), f"{where}: strides {actual.stride()}, not {expected.stride()}"
        torch.testing.assert_close(
            actual.detach().cpu(),
            expected.detach().cpu(),
            rtol=rtol,
            atol=atol,
            equal_nan=True,
            msg=lambda text: f"{where}: {text}",
        )
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys(), f"{where}: keys {list(actual)}, expected {list(expected)}"
        for key in expected:
            same(actual[key], expected[key], f"{where}[{key!r}]", rtol, atol)
    elif isinstance(expected, (tuple, list)):
        assert type(actual) is type(expected) and len(actual) == len(expected), f"{where}: {actual} not {expected}"
        for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
            same(one, other, f"{where}[{i}]", rtol, atol)
    else:
        assert actual == expected, f"{where}: {actual!r}, expected {expected!r}"


def tensors_in(value):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def on_accel(value):
    for tensor in tensors_in(value):
        assert tensor.device.type == "accel", f"got a tensor on {tensor.device}"


def check(function, *args, rtol=0.0, atol=0.0, **kwargs):
    """Assert that `function` gives on accel what it gives on the reference device, from the same seed, and that every
    tensor of the result is on accel. Returns the result on accel."""
    torch.manual_seed(SEED)
    expected = function(*moved(args, reference()), **moved(kwargs, reference()))
    torch.manual_seed(SEED)
    actual = function(*moved(args, "accel"), **moved(kwargs, "accel"))
    same(actual, expected, rtol=rtol, atol=atol)
    on_accel(actual)
    return actual


def cotangent(tensor):
    """A gradient for `tensor` that is the same on all devices and has no two equal values."""
    values = torch.linspace(-1, 1, max(tensor.numel(), 1), dtype=torch.float64)[: tensor.numel()]
    return values.view(tensor.shape).to(tensor.device, tensor.dtype)


def with_grads(function, *args, **kwargs):
    """Run `function` forward and backward. Returns the outputs, the gradients of all arguments that ask for one, and
    parameters' gradients and buffers of modules among the arguments."""
    outputs = [t for t in tensors_in(function(*args, **kwargs))]
    differentiable = [t for t in outputs if t.requires_grad]
    torch.autograd.backward(differentiable, [cotangent(t) for t in differentiable])
    result = {"outputs": outputs, "grads": [t.grad for t in tensors_in((args, kwargs)) if t.requires_grad]}
    for i, module in enumerate(arg for arg in args if isinstance(arg, torch.nn.Module)):
        result[f"parameters {i}"] = {name: p.grad for name, p in module.named_parameters()}
        result[f"buffers {i}"] = dict(module.named_buffers())
    return result


def check_grads(function, *args, rtol=0.0, atol=0.0, **kwargs):
    """`check`, forward and backward."""
    return check(functools.partial(with_grads, function), *args, rtol=rtol, atol=atol, **kwargs)


# ------------------------------------------------------------------------------------------------------------ subprocesses
@functools.cache
def _import_path() -> str:
    """PYTHONPATH under which `import torch` finds the package as if it were installed."""
    paths = [str(pathlib.Path(torch_accel.__file__).resolve().parents[1])]
    installed = importlib.metadata.entry_points(group="torch.backends")
    if not any(point.value.startswith("torch_accel.") for point in installed):
        # A source tree has no entry point: lend it one.
        folder = tempfile.TemporaryDirectory(prefix="torch_accel_tests_")
        _import_path.folder = folder  # deleted at exit
        info = pathlib.Path(folder.name, "torch_accel_source_tree-0.dist-info")
        info.mkdir()
        info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: torch_accel_source_tree\nVersion: 0\n")
        info.joinpath("entry_points.txt").write_text(
            "[torch.backends]\ntorch_accel = torch_accel._autoload:_autoload\n"
        )
        paths.append(folder.name)
    return os.pathsep.join(paths + [path for path in [os.environ.get("PYTHONPATH")] if path])


def python_command(code, flags=(), **env):
    """Arguments and environment of a fresh Python process that runs `code`.

    `import torch` alone makes accel known there, from the source tree as well. Variables of torch_accel that are set for
    the tests do not reach it; `env` adds some, None removes one.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TORCH_ACCEL_")}
    variables.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
    variables |= {"PYTHONPATH": _import_path(), "OMP_NUM_THREADS": "1"} | env
    return (
        [sys.executable, *flags, "-c", textwrap.dedent(code)],
        {name: str(value) for name, value in variables.items() if value is not None},
    )


def run_python(code, *, flags=(), timeout=120, **env) -> subprocess.CompletedProcess:
    """Run `code` in a fresh Python process (see `python_command`) and wait; its output comes back as text."""
    command, variables = python_command(code, flags, **env)
    return subprocess.run(
        command, env=variables, cwd=tempfile.gettempdir(), timeout=timeout, capture_output=True, text=True
    )


def run_ok(code, **options) -> str:
    """`run_python` of code that has to end with success. Returns what it printed."""
    done = run_python(code, **options)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
