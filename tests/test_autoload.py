"""Capability: `import torch` makes the device known, silently and without opening anything, and whatever is wrong is
said at the first use of the device, in one message that names the remedy."""

import importlib
import os
import pathlib
import shutil

import forked
import helpers
import pytest
import torch

import torch_accel

PACKAGE = pathlib.Path(torch_accel.__file__).parent
MINOR = ".".join(torch.__version__.split(".")[:2])

# The message of an exception that has to come, as "Type: message".
ERROR_OF = """
def error_of(use):
    try:
        use()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("expected an error")
"""
# What a program may do first with a device. `ones`, `to`, ... reach the device through different parts of torch.
FIRST_USES = """
import torch
FIRST_USES = {
    "factory": lambda: torch.ones(2, device="accel"),
    "init": lambda: torch.accel.init(),
    "to": lambda: torch.ones(2).to("accel"),
    "to index": lambda: torch.ones(2).to(0),
    "method": lambda: torch.ones(2).accel(),
    "module": lambda: torch.nn.Linear(2, 2).to("accel"),
    "module method": lambda: torch.nn.Linear(2, 2).accel(),
    "generator": lambda: torch.Generator("accel"),
    "stream": lambda: torch.Stream("accel"),
    "event": lambda: torch.accel.Event(),
    "set_device": lambda: torch.accel.set_device(0),
    "current_device": lambda: torch.accel.current_device(),
    "properties": lambda: torch.accel.get_device_properties(),
    "rng state": lambda: torch.accel.get_rng_state(),
}
"""


def altered_package(folder):
    """A copy of the package in `folder`, to be changed. Returns it and the PYTHONPATH that puts it first."""
    copy = folder / "torch_accel"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy, os.pathsep.join([str(folder), helpers._import_path()])


def add_distribution(folder, name, entry_points, **modules):
    """An installed package: metadata with entry points {name: object}, and modules {name: source}. Returns the
    PYTHONPATH with it."""
    info = folder / f"{name}-1.5.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    lines = [f"{point} = {value}" for point, value in entry_points.items()]
    info.joinpath("entry_points.txt").write_text("\n".join(["[torch_accel.backends]", *lines, ""]))
    for module, source in modules.items():
        folder.joinpath(f"{module}.py").write_text(source)
    return os.pathsep.join([str(folder), helpers._import_path()])


# ----------------------------------------------------------------------------------------------------------------- import
@pytest.mark.smoke
def test_import_torch_is_enough(run_python):
    done = run_python(
        """
        import torch
        x = torch.ones(2, device="accel")
        print((x + 1).tolist(), x.device, (torch.randn(4, 4, device="accel").t()[1:] @ x.new_ones(4, 1)).cpu().shape)
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[2.0, 2.0] accel:0 torch.Size([3, 1])\n"


@pytest.mark.smoke
def test_import_is_silent_and_opens_nothing(run_python):
    done = run_python(
        """
        import sys
        import torch
        extension = sys.modules["torch_accel._C"]
        assert not extension.is_resolved() and not extension.is_initialized() and not torch.accel.is_initialized()
        assert "torch_accel.demo" not in sys.modules and "torch_accel.info" not in sys.modules
        assert torch.accel.is_built() and torch.get_device_module("accel") is torch.accel
        """,
        # A backend that does not exist would be noticed by anything that looks for devices.
        TORCH_ACCEL_BACKEND="nonsense",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.smoke
def test_explicit_import_without_autoload_adds_and_replaces_nothing(run_ok):
    run_ok(
        """
        import sys
        import torch

        # Everything that is reachable by a name in torch's modules and in the classes there.
        def contents():
            found = {}
            for name, module in list(sys.modules.items()):
                if name == "torch" or name.startswith("torch."):
                    for key, value in list(vars(module).items()):
                        found[name, key] = value
                        if type.__instancecheck__(type, value) and value.__module__.startswith("torch"):
                            for member, what in list(vars(value).items()):
                                found[f"{value.__module__}.{value.__qualname__}", member] = what
            return found

        for name in ("accel", "accel:0"):
            try:
                torch.device(name)
            except RuntimeError:
                continue
            raise AssertionError("the device is known without the package")
        before, modules = contents(), set(sys.modules)

        import torch_accel

        after = contents()
        assert torch.ones(2, device="accel").sum().item() == 2
        assert not before.keys() - after.keys()
        # The one method that is replaced: see _autoload. torch itself notes the name, and adapts two enumerations.
        replaced = {key for key in before if after[key] is not before[key]}
        replaced = {key for key in replaced if not key[0].endswith(("DeviceType", "ProfilerActivity"))}
        replaced -= {("torch.utils.backend_registration", "_privateuse1_backend_name")}
        assert replaced == {("torch.Tensor", "__dlpack_device__")}, replaced

        added = {key for key in after.keys() - before.keys() if not key[0].startswith(("torch.accel", "torch_accel"))}
        assert {key[1] for key in added} == {"accel", "is_accel", "ACCEL"}, added
        # Only what is small comes along.
        others = {name for name in set(sys.modules) - modules if name.split(".")[0] != "torch_accel"}
        assert others <= {"torch.accel", "functools"}, others
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD=0,
        flags=("-W", "ignore"),
    )


def test_the_package_can_be_imported_first(run_python):
    """Its own `import torch` runs the entry point, which comes back to a package that is half loaded."""
    done = run_python(
        """
        import torch_accel
        import torch
        assert torch.ones(2, device="accel").add(1).tolist() == [2, 2]
        assert torch_accel.counters()["fallbacks"] == {} and torch.accel is torch_accel.accel
        with torch_accel.fallback("error"):
            pass
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_part_of_the_package_can_be_imported_first(run_python):
    done = run_python("import torch_accel.info, torch; print(torch.ones(2, device='accel').sum().item())")
    assert (done.returncode, done.stdout, done.stderr) == (0, "2.0\n", "")


def test_registering_again_does_nothing():
    before = torch.accel, torch.Tensor.__dlpack_device__, torch.accel._extension
    torch_accel._autoload._autoload()
    importlib.reload(torch_accel)
    assert before == (torch.accel, torch.Tensor.__dlpack_device__, torch.accel._extension)
    assert torch.accel._problem is None


@pytest.mark.smoke
def test_programs_that_never_use_the_device_do_not_open_it(run_ok):
    run_ok(
        """
        import time
        import torch
        extension = torch.accel._extension

        torch.manual_seed(3)
        torch.seed()
        torch.accel.manual_seed(1)
        torch.accel.manual_seed_all(2)
        assert not extension.is_resolved()  # a seed is kept

        assert torch.accelerator.current_accelerator().type == "accel"
        torch.accel.synchronize()
        torch.accel.empty_cache()
        assert torch.accel.memory_allocated() == torch.accel.max_memory_reserved() == 0
        assert torch.accel.memory_stats() == {} and not torch.ones(1).is_pinned()
        assert not extension.is_resolved()

        # These count devices, which must not start one either.
        x = torch.ones(3, requires_grad=True)
        (x * 2).sum().backward()  # the autograd engine makes a thread per device
        with torch.random.fork_rng(devices=[]):
            torch.rand(1)
        assert torch.accel.is_available() and torch.accel.device_count() == torch.accelerator.device_count() == 1
        torch.accelerator.empty_cache()
        torch.accelerator.memory_allocated()
        torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False).sum().backward()
        list(torch.utils.data.DataLoader(torch.arange(4)))
        time.sleep(0.1)
        assert not extension.is_initialized() and not torch.accel.is_initialized()

        assert torch.accel.initial_seed() == 2  # and the kept seed is used
        assert extension.is_initialized() and torch.accel.is_initialized()
        """
    )


# --------------------------------------------------------------------------------------------------------------- problems
@pytest.mark.smoke
def test_nonsense_backend_is_named_at_first_use():
    done = forked.run_python(
        ERROR_OF + FIRST_USES + """
assert torch.ones(2).sum().item() == 2
assert not torch.accel.is_available() and torch.accel.device_count() == torch.accelerator.device_count() == 0
assert torch.accelerator.current_accelerator(check_available=True) is None
assert torch.accel.is_built() and not torch.accel.is_initialized()
torch.manual_seed(1)
with torch.random.fork_rng():
    pass
for name, use in FIRST_USES.items():
    for again in range(2):
        message = error_of(use)
        assert message.startswith("ValueError: torch_accel: TORCH_ACCEL_BACKEND: expected a comma list of "), message
        assert "cuda, cpu" in message and "got 'nonsense'" in message and "unset it" in message, message
assert not torch.accel.is_initialized()
"""
        """
import os
for asked, text in {"cpu,nonsense": "got 'nonsense'", "CPU": "got 'CPU'", "cpu;cpu": "got 'cpu;cpu'"}.items():
    os.environ["TORCH_ACCEL_BACKEND"] = asked
    assert text in error_of(torch.accel.init)
# A failed first use leaves nothing behind: it works as soon as the cause is gone.
os.environ["TORCH_ACCEL_BACKEND"] = " cpu , cpu,"
assert torch.ones(2, device="accel:1").sum().item() == 2 and torch.accel.device_count() == 2
assert torch.accel.initial_seed() == 1
""",
        TORCH_ACCEL_BACKEND="nonsense",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine where backend cuda is not available")
def test_backend_that_is_not_available_says_why():
    printed = forked.run_ok(
        ERROR_OF + "import torch\nprint(error_of(lambda: torch.ones(1, device='accel')))", TORCH_ACCEL_BACKEND="cuda"
    )
    reason = "no CUDA device is visible" if torch.backends.cuda.is_built() else "this torch build has no CUDA"
    assert printed.startswith(
        "RuntimeError: torch_accel: TORCH_ACCEL_BACKEND: expected an available backend, got 'cuda'"
    )
    assert reason in printed and "python -m torch_accel info" in printed


def wrong_minor(package):
    package.joinpath("_build_info.py").write_text('VERSION = "0.1.0"\nTORCH_VERSION = "1.9.1"\n')
    return ["expected torch 1.9, which it was built for", f"got torch {MINOR}", "pip install"]


# What is missing is a module that says so: an editable installation would find the one of the source tree instead.
def never_built(package):
    package.joinpath("_build_info.py").write_text("raise ModuleNotFoundError(__name__)")
    return ["expected a built package, got sources only", "pip install"]


def no_extension(package):
    for extension in package.glob("_C.*"):
        extension.unlink()
    package.joinpath("_C.py").write_text("raise ModuleNotFoundError(__name__)")
    return ["extension torch_accel._C: expected it to load, got ModuleNotFoundError", "pip install"]


def broken_extension(package):
    for extension in package.glob("_C.*"):
        extension.write_bytes(b"not a library")
    return ["extension torch_accel._C: expected it to load, got ImportError", "pip install"]


def broken_python(package):
    with package.joinpath("_build_info.py").open("a") as file:
        file.write("raise RuntimeError('half written')\n")
    return ["torch_accel:", "half written"]


@pytest.mark.parametrize("damage", [wrong_minor, never_built, no_extension, broken_extension, broken_python])
def test_package_that_does_not_fit(tmp_path, damage):
    """torch itself goes on working, and each way to the device tells what is wrong and what to do."""
    package, path = altered_package(tmp_path)
    expected = damage(package)
    done = forked.run_python(
        ERROR_OF
        + FIRST_USES
        + f"""
import sys
assert torch.accel.__file__.startswith({str(tmp_path)!r}), torch.accel.__file__
assert "torch_accel._C" not in sys.modules
torch.manual_seed(1)
x = torch.ones(2, requires_grad=True)
(x * x).sum().backward()
with torch.random.fork_rng():
    torch.rand(1)
torch.nn.Linear(2, 2).to("cpu")
assert not torch.accel.is_available() and not torch.accel.is_built() and torch.accel.device_count() == 0
for name in ("init", "factory", "to", "method", "module", "set_device", "current_device", "properties", "rng state"):
    message = error_of(FIRST_USES[name])
    assert message.startswith("RuntimeError: torch_accel: ") and chr(10) not in message, (name, message)
    for text in {expected!r}:
        assert text in message, (name, message)
import torch_accel  # not even this raises
for use in (torch_accel.counters, torch_accel.reset_counters, lambda: torch_accel.fallback("allow")):
    assert {expected[0]!r} in error_of(use)
from torch_accel.__main__ import main
assert main(["info"]) == 1
""",
        PYTHONPATH=path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for text in expected:
        assert text in done.stdout  # `info` says the same


def test_slot_taken_by_another_package():
    done = forked.run_python(
        ERROR_OF
        + """
import torch
torch.utils.rename_privateuse1_backend("other")
import torch_accel
assert torch._C._get_privateuse1_backend_name() == "other" and torch.device("other:0").type == "other"
messages = {error_of(use) for use in (torch.accel.init, lambda: torch.accel.set_device(0), torch_accel.counters)}
assert len(messages) == 1
print(messages.pop())
assert not torch.accel.is_available()
assert not hasattr(torch.Tensor, "accel")
from torch_accel.__main__ import main
assert main(["info"]) == 1
""",
        TORCH_DEVICE_BACKEND_AUTOLOAD=0,
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, *rest = done.stdout.splitlines()
    assert first.startswith("RuntimeError: torch_accel: ") and "PrivateUse1" in first and "'other'" in first
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in first
    assert any("'other'" in line for line in rest)


def test_bad_fallback_policy():
    done = forked.run_python(
        ERROR_OF + "import torch\nassert torch.ones(1) == 1\nprint(error_of(lambda: torch.ones(1, device='accel')))",
        TORCH_ACCEL_FALLBACK="WARN",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "TORCH_ACCEL_FALLBACK: expected one of warn, allow, error, got 'WARN'" in done.stdout


def test_fallback_policy_is_read_at_import():
    printed = forked.run_ok("import torch; print(torch.accel._extension.get_fallback())", TORCH_ACCEL_FALLBACK="allow")
    assert printed == "allow\n"


# ----------------------------------------------------------------------------------------------- backends of other packages
VENDOR = """
from torch_accel.backends import NativeSpec
spec = NativeSpec("good", "CPU", priority=900)
def make():
    return NativeSpec("made", "CPU", priority=-1)
def other_name():
    return NativeSpec("another", "CPU")
def fails():
    raise OSError("libvendor.so.3 is missing")
wrong = {"name": "wrong"}
impostor = NativeSpec("cpu", "NONE", priority=1000)
unknown = NativeSpec("unknown", "XYZ", priority=990)
print("vendor code ran")
"""
BROKEN = {
    "fails": "vendor:fails",
    "wrong": "vendor:wrong",
    "gone": "no_such_module:spec",
    "renamed": "vendor:other_name",
}


@pytest.mark.smoke
def test_backend_of_another_package(tmp_path):
    """It is loaded at first use, taken when it has the highest priority, and cannot replace a built-in one."""
    points = {"good": "vendor:spec", "made": "vendor:make", "cpu": "vendor:impostor", "unknown": "vendor:unknown"}
    path = add_distribution(tmp_path, "vendor_package", points, vendor=VENDOR)
    printed = forked.run_ok(
        """
        import sys
        import torch
        assert "vendor" not in sys.modules
        x = torch.ones(3, device="accel")
        print(torch.accel.get_device_properties().backend, x.sum().item(), torch.accel.device_count())
        from torch_accel import backends
        rows = {row["name"]: row for row in backends.report()}
        assert list(rows) == ["cuda", "cpu", "good", "made", "unknown"], rows
        assert rows["good"] == {
            "name": "good", "route": "native", "source": "vendor_package 1.5", "available": True, "reason": None
        }
        assert rows["cpu"]["source"] == "built in" and rows["cpu"]["available"]
        assert not rows["unknown"]["available"] and "xyz" in rows["unknown"]["reason"].lower(), rows
        """,
        PYTHONPATH=path,
    )
    assert printed == "vendor code ran\ngood 3.0 1\n"
    printed = forked.run_ok(
        "import torch; print([torch.accel.get_device_properties(i).backend for i in range(torch.accel.device_count())])",
        PYTHONPATH=path,
        TORCH_ACCEL_BACKEND="made,cpu,good",
    )
    assert printed == "vendor code ran\n['made', 'cpu', 'good']\n"


def test_broken_backend_of_another_package(tmp_path):
    path = add_distribution(tmp_path, "vendor_package", BROKEN, vendor=VENDOR.replace("print", "str"))
    done = forked.run_python(
        ERROR_OF
        + """
import sys, os, warnings
import torch
torch.manual_seed(0)
assert torch.ones(2).sum().item() == 2  # programs on the CPU never hear of it
assert "vendor" not in sys.modules and "no_such_module" not in sys.modules

# Asked for by name: an error that says why.
reasons = {
    "fails": "OSError: libvendor.so.3 is missing",
    "wrong": "TypeError: expected a NativeSpec",
    "gone": "ModuleNotFoundError: No module named 'no_such_module'",
    "renamed": "ValueError: expected a spec named 'renamed' like its entry point, got 'another'",
}
for name, reason in reasons.items():
    os.environ["TORCH_ACCEL_BACKEND"] = name
    message = error_of(lambda: torch.ones(1, device="accel"))
    assert f"expected an available backend, got {name!r}: entry point " in message and reason in message, message
os.environ["TORCH_ACCEL_BACKEND"] = "nonsense"
assert "cuda, cpu, fails, gone, renamed, wrong" in error_of(torch.accel.init)

# Not asked for: the device works with another backend, and a warning per broken one tells of it, once.
del os.environ["TORCH_ACCEL_BACKEND"]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert torch.ones(2, device="accel").sum().item() == 2
    torch.ones(2).to("accel")
texts = sorted(str(warning.message) for warning in caught)
assert [text.split("'")[1] for text in texts] == sorted(reasons), texts
assert all(warning.category is RuntimeWarning for warning in caught)
assert all("is left out: entry point " in text for text in texts)
""",
        PYTHONPATH=path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_knobs_are_overridden_before_their_stage_only():
    forked.run_ok(
        ERROR_OF
        + """
import torch
from torch_accel import config
assert config.get("backend") == [] and not config.KNOBS["backend"].is_set
config.override("backend", "cpu,cpu")
assert config.KNOBS["backend"].is_set and config.get("backend") == ["cpu", "cpu"]
assert torch.accel.device_count() == 2
config.override("backend", "cpu")
assert torch.accel.device_count() == 2
assert error_of(lambda: config.override("fallback", "x")).startswith("ValueError: torch_accel: config.override('fallback')")
assert error_of(lambda: config.get("nothing")).startswith("KeyError")
"""
    )
