"""Capability: `python -m torch_accel info` tells what there is and, when something is wrong, what."""

import json
import os
import platform

import forked
import helpers
import pytest
import torch

import torch_accel
from torch_accel import _build_info, accel, config, info
from torch_accel.__main__ import main


# `python -m torch_accel` in a fresh process, as a line of code.
def command(*arguments):
    return f"""
        import runpy, sys
        sys.argv = ["torch_accel", *{list(arguments)!r}]
        runpy.run_module("torch_accel", run_name="__main__", alter_sys=True)
    """


@pytest.mark.smoke
def test_json():
    found = json.loads(forked.run_ok(command("info", "--json")))
    assert list(found) == ["versions", "problem", "devices", "backends", "knobs", "counters"]
    assert found["problem"] is None
    assert found["versions"] == {
        "torch_accel": _build_info.VERSION,
        "torch": torch.__version__,
        "torch_built_for": _build_info.TORCH_VERSION,
        "python": platform.python_version(),
    }
    assert found["devices"] and found["devices"][0].keys() == accel.DeviceProperties.__dataclass_fields__.keys()
    assert [row["index"] for row in found["devices"]] == list(range(len(found["devices"])))
    assert {row["backend"] for row in found["devices"]} <= {
        row["name"] for row in found["backends"] if row["available"]
    }
    backends = {row["name"]: row for row in found["backends"]}
    assert backends["cpu"] == {
        "name": "cpu",
        "route": "native",
        "source": "built in",
        "available": True,
        "reason": None,
    }
    assert backends["cuda"]["available"] == torch.cuda.is_available()
    assert backends["cuda"]["available"] or "CUDA" in backends["cuda"]["reason"]
    knobs = {row["env"]: row for row in found["knobs"]}
    assert (
        knobs.keys() == {knob.env for knob in config.KNOBS.values()} >= {"TORCH_ACCEL_BACKEND", "TORCH_ACCEL_FALLBACK"}
    )
    assert knobs["TORCH_ACCEL_FALLBACK"]["value"] == "warn" and knobs["TORCH_ACCEL_FALLBACK"]["is_set"] is False
    assert all(row["doc"] and row["stage"] in ("import", "first use") for row in found["knobs"])
    nothing = {"count": 0, "bytes": 0}
    assert found["counters"]["fallbacks"] == {}
    assert set(found["counters"]["copies"]) == {"host_to_device", "device_to_host", "device_to_device"}
    assert all(row == nothing for row in found["counters"]["copies"].values())


@pytest.mark.smoke
def test_text(capsys):
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    properties = torch.accel.get_device_properties(0)
    for expected in (
        f"running torch {torch.__version__}, python {platform.python_version()}",
        "accel:0",
        properties.name,
        properties.native_device,
        f"{properties.total_memory / 2**30:.1f} GiB",
        "cpu        native   built in     available",
        "TORCH_ACCEL_BACKEND",
        "fallbacks              0",
    ):
        assert expected in text, expected
    sections = [line for line in text.splitlines() if line and not line.startswith(" ")]
    assert sections[2:] == ["devices", "backends", "knobs", "counters"]
    assert max(map(len, text.splitlines())) <= 120


def test_counters_are_those_of_the_process():
    torch_accel.reset_counters()
    x = torch.ones(10).to("accel")
    x.cpu()
    x.clone()
    assert info.collect()["counters"] == torch_accel.counters()
    text = info.render(info.collect())
    assert "host_to_device         1 copies, 40 bytes" in text and "device_to_host         1 copies, 40 bytes" in text


def test_fallbacks_are_listed():
    x = torch.ones(4).to("accel")
    torch_accel.reset_counters()
    extension = torch.accel._extension
    extension.set_op_policy("aten::sin", "fallback")
    try:
        with torch_accel.fallback("allow"):
            x.sin()
            x.sin()
        counted = torch_accel.counters()["fallbacks"]["aten::sin"]
        found = info.collect()
    finally:
        extension.set_op_policy("aten::sin", "native")
        torch_accel.reset_counters()
    assert counted["count"] == 2 and found["counters"]["fallbacks"]["aten::sin"] == counted
    assert list(counted["sources"]) == [f"{__file__}:{test_fallbacks_are_listed.__code__.co_firstlineno + 7}",
                                        f"{__file__}:{test_fallbacks_are_listed.__code__.co_firstlineno + 8}"]  # fmt: skip
    text = info.render(found)
    assert "fallbacks              2" in text
    assert f"aten::sin                      2 calls, {counted['bytes']} bytes" in text
    json.dumps(found)


@pytest.mark.smoke
def test_nonsense_backend():
    """Said in place of the devices, with the rest as usual; the exit status tells it too."""
    done = forked.run_python(command("info"), TORCH_ACCEL_BACKEND="nonsense")
    assert (done.returncode, done.stderr) == (1, "")
    assert "problem\n  torch_accel: TORCH_ACCEL_BACKEND: expected a comma list of cuda, cpu" in done.stdout
    assert "got 'nonsense'" in done.stdout and "devices\n  none\n" in done.stdout
    assert "cpu        native   built in     available" in done.stdout
    assert "TORCH_ACCEL_BACKEND    nonsense     set" in done.stdout


def test_problem_met_at_import():
    done = forked.run_python(command("info", "--json"), TORCH_ACCEL_FALLBACK="maybe")
    assert (done.returncode, done.stderr) == (1, "")
    found = json.loads(done.stdout)
    assert "TORCH_ACCEL_FALLBACK: expected one of warn, allow, error, got 'maybe'" in found["problem"]
    assert found["devices"] == [] and found["backends"] and found["versions"]["torch"] == torch.__version__


def test_two_devices_and_a_broken_entry_point(tmp_path):
    folder = tmp_path / "vendor-2.0.dist-info"
    folder.mkdir()
    folder.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: vendor\nVersion: 2.0\n")
    folder.joinpath("entry_points.txt").write_text("[torch_accel.backends]\nfast = vendor_backend:spec\n")
    tmp_path.joinpath("vendor_backend.py").write_text("raise OSError('no driver')\n")
    options = {"PYTHONPATH": os.pathsep.join([str(tmp_path), helpers._import_path()])}
    done = forked.run_python(command("info", "--json"), TORCH_ACCEL_BACKEND="cpu,cpu", **options)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["problem"] is None and [row["index"] for row in found["devices"]] == [0, 1]
    assert found["backends"][-1] == {
        "name": "fast",
        "route": None,
        "source": "vendor 2.0",
        "available": False,
        "reason": "entry point vendor_backend:spec failed: OSError: no driver",
    }

    # Without a choice the warning about it is left out here: its row says the same.
    done = forked.run_python(command("info"), **options)
    assert (done.returncode, done.stderr) == (0, "")
    assert "fast       -        vendor 2.0   not available: entry point vendor_backend:spec failed" in done.stdout


def test_usage_errors(capsys):
    for arguments in ([], ["nothing"], ["info", "--no-such-option"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        assert "usage: python -m torch_accel" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    text = capsys.readouterr().out
    assert caught.value.code == 0 and "info" in text and "demo" in text


def test_info_opens_nothing_that_it_need_not():
    """To look does not change what the program counts or draws."""
    torch.manual_seed(5)
    expected = torch.rand(3, device="accel").cpu()
    torch_accel.reset_counters()
    torch.manual_seed(5)
    before = torch.accel.memory_allocated()
    info.render(info.collect())
    assert torch.accel.memory_allocated() == before
    assert torch.equal(torch.rand(3, device="accel").cpu(), expected)
