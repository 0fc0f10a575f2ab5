"""Proves the profiler: operator names, shapes, stacks, memory and user ranges of work on the device, and traces that load."""

import json

import pytest
import torch
from helpers import reference
from torch.profiler import ProfilerActivity, profile, record_function, schedule

import torch_accel

CPU = [ProfilerActivity.CPU]


def rows(profiler, **kwargs):
    return {event.key: event for event in profiler.key_averages(**kwargs)}


@pytest.mark.smoke
def test_operator_names_and_counts():
    """Each call shows once: the way to the native key adds no rows of its own."""

    def counts(device):
        a = torch.randn(8, 8, device=device)
        with profile(activities=CPU) as profiler:
            for _ in range(3):
                (a @ a).relu().softmax(-1)
            a.add_(1)
            a.t()
        events = rows(profiler)
        assert events["aten::mm"].cpu_time_total > 0
        return {name: event.count for name, event in events.items() if name.startswith("aten")}

    ours = counts("accel")
    for name in ("matmul", "mm", "relu", "softmax", "_softmax"):
        assert ours[f"aten::{name}"] == 3, name
    assert ours["aten::add_"] == ours["aten::t"] == 1
    if reference().type == "cpu":
        assert ours == counts("cpu")


def test_the_same_names_as_on_the_cpu():
    def step(device):
        module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.LayerNorm(4)).to(device)
        x = torch.randn(2, 4, device=device, requires_grad=True)
        with profile(activities=CPU) as profiler:
            module(x).sum().backward()
        return {name: event.count for name, event in rows(profiler).items() if not name.startswith(("aten::t", "Prof"))}

    cpu, accel = step("cpu"), step("accel")
    missing = {name for name in cpu if name not in accel}
    assert not missing
    for name in (
        "aten::addmm",
        "aten::native_layer_norm",
        "aten::native_layer_norm_backward",
        "AddmmBackward0",
        "aten::mm",
    ):
        assert accel[name] == cpu[name], name


def test_shapes_stacks_and_ranges():
    a = torch.randn(3, 4, device="accel")
    with (
        profile(activities=CPU, record_shapes=True, with_stack=True, with_flops=True) as profiler,
        record_function("my range"),
    ):
        a @ a.t()
    events = rows(profiler, group_by_input_shape=True)
    assert events["my range"].count == 1
    shapes = {event.key: event.input_shapes for event in profiler.key_averages(group_by_input_shape=True)}
    assert shapes["aten::mm"] == [[3, 4], [4, 3]]
    assert rows(profiler)["aten::mm"].flops == 2 * 3 * 4 * 3
    mm = next(event for event in profiler.events() if event.name == "aten::mm")
    parents, parent = [], mm.cpu_parent
    while parent is not None:
        parents.append(parent.name)
        parent = parent.cpu_parent
    assert parents[0] == "aten::matmul" and "my range" in parents


def test_memory_profile_sees_the_device():
    with profile(activities=CPU, profile_memory=True) as profiler:
        a = torch.empty(1024, device="accel")
        b = a + 1
        del a, b
    table = profiler.key_averages().table(sort_by="cpu_time_total")
    assert "aten::empty" in table and "aten::add" in table


def test_schedule_and_trace(tmp_path):
    traces = []

    def ready(profiler):
        path = tmp_path / f"trace{len(traces)}.json"
        profiler.export_chrome_trace(str(path))
        traces.append(path)

    a = torch.randn(4, 4, device="accel")
    plan = schedule(wait=1, warmup=1, active=2, repeat=1)
    with profile(activities=CPU, schedule=plan, on_trace_ready=ready, record_shapes=True) as profiler:
        for _ in range(4):
            a.mm(a)
            profiler.step()
    (path,) = traces
    names = [event.get("name") for event in json.loads(path.read_text())["traceEvents"]]
    assert names.count("aten::mm") == 2
    assert any(str(name).startswith("ProfilerStep#") for name in names)


def test_default_activities_and_the_older_profiler():
    a = torch.randn(4, 4, device="accel")
    with profile() as profiler:
        a.mm(a)
    assert "aten::mm" in rows(profiler)
    with torch.autograd.profiler.profile() as older:
        a.mm(a)
    assert "aten::mm" in {event.key for event in older.key_averages()}
    with torch.autograd.profiler.record_function("range"):
        assert a.mm(a).shape == (4, 4)


def test_backward_on_its_thread_is_recorded():
    x = torch.randn(4, 4, device="accel", requires_grad=True)
    with profile(activities=CPU) as profiler:
        x.tanh().sum().backward()
    events = rows(profiler)
    assert events["aten::tanh_backward"].count == 1
    assert "TanhBackward0" in events or any("TanhBackward0" in name for name in events)


def test_fallbacks_show_as_the_copies_they_are():
    a = torch.randn(4, 4, device="accel")
    extension = torch_accel.accel._require_extension()
    extension.set_op_policy("aten::mm", "fallback")
    try:
        with torch_accel.fallback("allow"), profile(activities=CPU) as profiler:
            a.mm(a)
    finally:
        extension.set_op_policy("aten::mm", "")
    events = rows(profiler)
    assert events["aten::mm"].count == 2 and events["aten::copy_"].count >= 2
