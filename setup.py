"""Builds the extension torch_accel._C with one CMake call. All metadata is in pyproject.toml.

Invariants
  * The extension is built against the torch that is installed beside this interpreter, never against one that pip
    fetched for a build: a binary serves one torch minor only. So builds run with --no-build-isolation.
  * CMake works in build/, one folder per interpreter and torch version, so a rebuild compiles what changed only.
  * A file that is in use is replaced, never overwritten: running processes keep the extension that they loaded.

Environment: TORCH_ACCEL_BUILD_DIR (default build/), CMAKE_ARGS (more arguments for CMake), MAX_JOBS (compile jobs).
"""

import contextlib
import filecmp
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError

MIN_TORCH = (2, 11)
ROOT = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("TORCH_ACCEL_BUILD_DIR", ROOT / "build")).resolve()


class CleanBuild(build):
    """`build` into an empty folder: a module that was removed from the sources must not stay in the wheel."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class CMakeBuild(build_ext):
    """Build torch_accel._C and put it, _build_info.py and the C headers into the package."""

    def run(self) -> None:
        torch = import_torch()
        python_include = Path(sysconfig.get_path("include"))
        if not (python_include / "Python.h").is_file():
            fail(f"Python.h in {python_include}", "none", "install Python's headers, such as the package python3-dev")

        folder = BUILD / f"cmake-{sys.implementation.cache_tag}-torch{torch.__version__}"
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        run_cmake(
            folder,
            {
                "CMAKE_CXX_COMPILER_LAUNCHER": shutil.which("ccache") or "",
                "ACCEL_PYTHON_INCLUDE_DIR": python_include,
                "ACCEL_TORCH_DIR": Path(torch.__file__).parent,
                "ACCEL_CXX11_ABI": int(torch._C._GLIBCXX_USE_CXX11_ABI),
                "ACCEL_EXT_SUFFIX": suffix,
                "ACCEL_PJRT_INCLUDE_DIR": find_pjrt_include(),
            },
        )

        package = (ROOT if self.inplace else Path(self.build_lib)) / "torch_accel"
        put(folder / f"_C{suffix}", package / f"_C{suffix}")
        if self.inplace:  # for the tests; no part of a wheel
            put(folder / f"_core_test{suffix}", package / f"_core_test{suffix}")
        for header in (ROOT / "csrc/include/torch_accel").glob("*.h"):
            put(header, package / "include/torch_accel" / header.name)
        info = folder / "_build_info.py"
        info.write_text(
            '"""Written by setup.py: what this package was built as, and for which torch."""\n\n'
            f'VERSION = "{self.distribution.get_version()}"\n'
            f'TORCH_VERSION = "{torch.__version__.split("+")[0]}"\n'
        )
        put(info, package / "_build_info.py")


def fail(expected: str, got: str, what_to_do: str) -> None:
    raise BaseError(f"torch_accel: build: expected {expected}, got {got} ({what_to_do})")


def import_torch():
    """The installed torch. Without autoload: an extension that no longer fits must not break its own rebuild."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    wanted = f"torch >= {MIN_TORCH[0]}.{MIN_TORCH[1]} installed for {sys.executable}"
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        fail(wanted, str(error), "install torch, and keep pip from hiding it: pip install --no-build-isolation .")
    if tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) < MIN_TORCH:
        fail(wanted, f"torch {torch.__version__}", "pip install --upgrade torch")
    return torch


def find_pjrt_include() -> str:
    """The folder of pjrt_c_api.h, which comes with the wheel xla-cpu-pjrt, or "": then the build has no PJRT."""
    for site in (sysconfig.get_path("platlib"), sysconfig.get_path("purelib"), *sys.path):
        folder = Path(site) / "xla_plugins/xla_cpu_pjrt/include"
        if (folder / "pjrt_c_api.h").is_file():
            return str(folder)
    print("torch_accel: build: no pjrt_c_api.h, so no PJRT backend (pip install xla-cpu-pjrt, and build again)")
    return ""


def find_tool(name: str, folder_name: str) -> str:
    """The program `name` from beside this interpreter, from its wheel, or from PATH, in this order."""
    folders = [sysconfig.get_path("scripts")]
    with contextlib.suppress(ImportError, AttributeError):
        folders.append(str(getattr(importlib.import_module(name), folder_name)))
    path = shutil.which(name, path=os.pathsep.join(folders)) or shutil.which(name)
    if path is None:
        fail(f"the program {name}", "none", f"pip install {name}")
    return str(path)


def run_cmake(folder: Path, settings: dict) -> None:
    cmake, ninja = find_tool("cmake", "CMAKE_BIN_DIR"), find_tool("ninja", "BIN_DIR")
    cache = folder / "CMakeCache.txt"
    if cache.is_file() and f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT}\n" not in cache.read_text():
        shutil.rmtree(folder)  # the tree was moved or copied, and CMake refuses the cache of another folder
    folder.mkdir(parents=True, exist_ok=True)

    # With paths relative to the root, ccache serves every checkout of the sources from one cache.
    environment = {"CCACHE_BASEDIR": str(ROOT), **os.environ}
    configure = [cmake, "-S", ROOT, "-B", folder, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    configure += [f"-D{name}={value}" for name, value in settings.items()]
    configure += shlex.split(os.environ.get("CMAKE_ARGS", ""))
    compile_all = [cmake, "--build", folder]
    if os.environ.get("MAX_JOBS"):
        compile_all += ["--parallel", os.environ["MAX_JOBS"]]
    for command in (configure, compile_all):
        if subprocess.run([str(part) for part in command], env=environment).returncode:
            fail("no error", f"one of cmake {command[1]}, above", f"build folder: {folder}")


def put(source: Path, target: Path) -> None:
    if target.is_file() and filecmp.cmp(source, target, shallow=False):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    shutil.copy(source, partial)
    os.replace(partial, target)


setup(
    ext_modules=[Extension("torch_accel._C", sources=[])],
    cmdclass={"build": CleanBuild, "build_ext": CMakeBuild},
    options={"build": {"build_base": str(BUILD)}},
)
