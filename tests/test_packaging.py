"""Capability: the package is installed under its name with the entry point that torch loads, and fits this torch."""

import importlib.metadata
import inspect
import pathlib
import shutil
import subprocess

import pytest
import torch

import torch_accel
from torch_accel import _C, _build_info

DISTRIBUTION = "torch-accel-device"


@pytest.fixture
def distribution():
    try:
        return importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"needs an installed package: pip install --no-build-isolation -e . makes {DISTRIBUTION}")


@pytest.mark.smoke
def test_metadata(distribution):
    assert distribution.metadata["Name"] == DISTRIBUTION
    assert distribution.version == _build_info.VERSION
    assert any(requirement.startswith("torch>=2.11") for requirement in distribution.requires)
    assert distribution.metadata["Requires-Python"] == ">=3.11"
    assert distribution.metadata["License-Expression"] == "Apache-2.0"


@pytest.mark.smoke
def test_entry_point(distribution):
    points = [point for point in distribution.entry_points if point.group == "torch.backends"]
    assert [(point.name, point.value) for point in points] == [("torch_accel", "torch_accel._autoload:_autoload")]
    assert points[0].load() is torch_accel._autoload._autoload


def test_it_was_built_for_this_torch():
    assert _build_info.TORCH_VERSION.split(".")[:2] == torch.__version__.split(".")[:2]
    assert _C.torch_version.split(".")[:2] == torch.__version__.split(".")[:2]


def test_what_is_public():
    assert torch_accel.__all__ == ["counters", "fallback", "reset_counters"]
    for name in torch_accel.__all__:
        assert inspect.getdoc(getattr(torch_accel, name))
    assert inspect.getdoc(torch_accel)
    assert pathlib.Path(torch_accel.__file__).with_name("py.typed").exists()


def test_the_extension_is_the_packages_own():
    assert pathlib.Path(_C.__file__).parent == pathlib.Path(torch_accel.__file__).parent


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm (binutils)")
def test_the_extension_exports_its_entry_alone():
    """Other symbols could meet those of another extension in the process by accident; weak ones are of C++ itself."""
    printed = subprocess.run(["nm", "-D", "--defined-only", _C.__file__], capture_output=True, text=True, check=True)
    symbols = [line.split()[-2:] for line in printed.stdout.splitlines()]
    strong = {name for kind, name in symbols if kind not in "VWuw"}
    assert strong - {"__bss_start", "_edata", "_end", "_init", "_fini"} == {"PyInit__C"}
