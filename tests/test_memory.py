"""Capability: memory figures of torch.accel and torch.accelerator are true: they move by the right number of bytes, peaks
and totals included, per device. What each kind of operation on a storage costs is in test_storage.py."""

import gc
import threading

import forked
import pytest
import torch

import torch_accel

DEVICE = torch.device("accel", 0)
EXACT = torch.accel.get_device_properties(0).native_device.startswith("cpu")

# A caching allocator counts blocks, in steps of 512 bytes: then all sizes here are multiples of that, and what it keeps
# for reuse counts as reserved.
SIZE = 512 * 100


def buffer(size=SIZE, device="accel"):
    return torch.empty(size, dtype=torch.uint8, device=device)


@pytest.fixture(autouse=True)
def quiet():
    torch.accel.init()
    torch.accel.reset_peak_memory_stats()
    torch.accel.reset_accumulated_memory_stats()


def change(function):
    """Bytes by which `function` moves memory_allocated while its result lives, and by which its peak is higher."""
    before = torch.accel.memory_allocated()
    torch.accel.reset_peak_memory_stats()
    result = function()
    after, peak = torch.accel.memory_allocated(), torch.accel.max_memory_allocated()
    del result
    return after - before, peak - before


# ---------------------------------------------------------------------------------------------------------------- figures
@pytest.mark.smoke
def test_allocated_and_its_peak():
    start = torch.accel.memory_allocated()
    x = buffer()
    assert torch.accel.memory_allocated() == torch.accel.max_memory_allocated() == start + SIZE
    y, z = buffer(), x.clone()
    assert torch.accel.memory_allocated() == torch.accel.max_memory_allocated() == start + 3 * SIZE
    del y
    assert torch.accel.memory_allocated() == start + 2 * SIZE
    assert torch.accel.max_memory_allocated() == start + 3 * SIZE
    torch.accel.reset_peak_memory_stats()
    assert torch.accel.max_memory_allocated() == start + 2 * SIZE
    del x, z
    assert torch.accel.memory_allocated() == start
    assert torch.accel.max_memory_allocated() == start + 2 * SIZE
    assert torch.accel.memory_reserved() >= torch.accel.memory_allocated()
    assert torch.accel.max_memory_reserved() >= torch.accel.max_memory_allocated()


@pytest.mark.parametrize("argument", [None, 0, "accel", "accel:0", DEVICE], ids=repr)
def test_torch_accelerator_tells_the_same(argument):
    x = buffer()
    a, ours = torch.accelerator, torch.accel
    for name in (
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "memory_stats",
    ):
        assert getattr(a, name)(argument) == getattr(ours, name)(argument) == getattr(ours, name)(), name
    assert ours.memory_allocated(argument) == ours.memory_stats(argument)["allocated_bytes.all.current"] >= SIZE
    del x
    a.reset_peak_memory_stats(argument)
    assert ours.max_memory_allocated() == ours.memory_allocated()
    a.reset_accumulated_memory_stats(argument)
    assert ours.memory_stats()["allocated_bytes.all.allocated"] == 0
    if hasattr(a, "get_memory_info"):
        assert a.get_memory_info(argument)[1] == ours.mem_get_info(argument)[1]


@pytest.mark.smoke
def test_memory_stats_has_the_documented_keys():
    stats = torch.accel.memory_stats()
    for kind in (
        "allocation",
        "segment",
        "active",
        "inactive_split",
        "allocated_bytes",
        "reserved_bytes",
        "active_bytes",
        "inactive_split_bytes",
        "requested_bytes",
    ):
        for pool in ("all", "large_pool", "small_pool"):
            for metric in ("current", "peak", "allocated", "freed"):
                assert stats[f"{kind}.{pool}.{metric}"] >= 0
    for name in ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"):
        assert stats[name] >= 0
    assert list(stats) == sorted(stats) and all(type(value) is int for value in stats.values())


def test_counts_and_totals():
    before = torch.accel.memory_stats()
    for _ in range(5):
        buffer()
    x = [buffer(512) for _ in range(3)]
    after = torch.accel.memory_stats()
    moved = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert moved["allocation.all.allocated"] == 8 and moved["allocation.all.freed"] == 5
    assert moved["allocation.all.current"] == 3
    assert moved["allocated_bytes.all.allocated"] == 5 * SIZE + 3 * 512
    assert moved["allocated_bytes.all.freed"] == 5 * SIZE
    assert moved["allocated_bytes.all.current"] == 3 * 512
    for kind in ("allocated_bytes", "active_bytes", "allocation"):
        assert after[f"{kind}.all.peak"] >= after[f"{kind}.all.current"]
    torch.accel.reset_accumulated_memory_stats()
    reset = torch.accel.memory_stats()
    assert reset["allocated_bytes.all.allocated"] == reset["allocated_bytes.all.freed"] == 0
    assert reset["allocated_bytes.all.current"] == after["allocated_bytes.all.current"]  # resets totals alone
    assert reset["allocated_bytes.all.peak"] == after["allocated_bytes.all.peak"]
    del x
    assert torch.accel.memory_stats()["allocated_bytes.all.freed"] == 3 * 512


def test_reserved_memory_and_the_cache():
    x = buffer()
    assert torch.accel.memory_reserved() >= torch.accel.memory_allocated()
    value = torch.full((100,), 3.0, device="accel")
    del x
    torch.accel.empty_cache()
    torch.accelerator.empty_cache()
    assert torch.accel.memory_allocated() >= 400 and value.sum().item() == 300  # what is in use stays
    if EXACT:  # nothing is cached
        assert torch.accel.memory_reserved() == torch.accel.memory_allocated()


@pytest.mark.smoke
def test_memory_of_the_whole_device():
    free, total = torch.accel.mem_get_info()
    assert 0 < free <= total == torch.accel.get_device_properties().total_memory
    assert isinstance(free, int) and isinstance(total, int)


def test_summary():
    x = buffer(1_000_448)
    text = torch.accel.memory_summary()
    lines = text.splitlines()
    assert lines[0].startswith(f"accel:0 ({torch.accel.get_device_name()})")
    assert lines[1].split() == ["current", "peak", "allocated", "freed"]
    assert [line.split()[0] for line in lines[2:]] == ["tensors", "reserved"]
    assert lines[2].split()[1] == f"{torch.accel.memory_allocated():,}"
    assert lines[2].split()[2] == f"{torch.accel.max_memory_allocated():,}"
    del x


# ------------------------------------------------------------------------------------------------------ who holds memory
def test_views_and_aliases_hold_their_base():
    x = buffer()
    start = torch.accel.memory_allocated()
    aliases = [
        x.view(2, -1),
        x[10:20],
        x.t(),
        x.detach(),
        x.data,
        x.untyped_storage(),
        x.expand(2, SIZE),
        x.chunk(4)[3],
    ]
    assert torch.accel.memory_allocated() == start
    del x
    while aliases:
        assert torch.accel.memory_allocated() == start
        aliases.pop()
    assert torch.accel.memory_allocated() == start - SIZE


def test_nothing_is_held_by_zero_bytes():
    assert change(lambda: torch.empty(0, device="accel")) == (0, 0)
    assert change(lambda: torch.empty(3, 0, 5, dtype=torch.int64, device="accel")) == (0, 0)
    assert change(lambda: torch.ones(0).to("accel")) == (0, 0)
    assert change(lambda: torch.empty(0, device="accel") + torch.empty(0, device="accel")) == (0, 0)
    before = torch.accel.memory_stats()["allocation.all.allocated"]
    torch.empty(0, device="accel").clone()
    assert torch.accel.memory_stats()["allocation.all.allocated"] == before


@pytest.mark.skipif(not EXACT, reason="needs an allocator that does not round: backend cpu")
def test_bytes_are_exact():
    for shape, dtype, size in (
        ((), torch.float32, 4),
        ((3,), torch.bool, 3),
        ((7, 3), torch.bfloat16, 42),
        ((5,), torch.complex128, 80),
        ((1,), torch.uint8, 1),
    ):
        assert change(lambda shape=shape, dtype=dtype: torch.empty(shape, dtype=dtype, device="accel")) == (size, size)
    assert change(lambda: torch.empty_strided((2, 2), (10, 1), device="accel")) == (48, 48)
    assert change(lambda: torch.tensor([1, 2, 3], device="accel")) == (24, 24)
    assert change(lambda: torch.nn.Linear(3, 5, device="accel")) == (80, 80)


def test_results_and_temporaries():
    x = torch.ones(SIZE // 4, device="accel")
    assert change(lambda: x + 1) == (SIZE, SIZE)
    assert change(lambda: (x + 1) * 2 + 3) == (SIZE, 2 * SIZE)  # a temporary dies when the next is made
    assert change(lambda: x.add_(1).mul_(2)) == (0, 0)
    assert change(lambda: torch.add(x, 1, out=x)) == (0, 0)
    assert change(lambda: x.half()) == (SIZE // 2, SIZE // 2)
    assert change(lambda: x.to("cpu")) == (0, 0)
    assert change(lambda: x.copy_(torch.zeros(SIZE // 4))) == (0, 0)
    assert change(lambda: torch.zeros(SIZE // 4).to("accel")) == (SIZE, SIZE)
    assert change(lambda: [x.clone() for _ in range(4)]) == (4 * SIZE, 4 * SIZE)
    target = buffer(0).float()
    assert change(lambda: torch.mul(x, 2, out=target)) == (SIZE, SIZE)
    assert change(lambda: torch.mul(x, 2, out=target)) == (0, 0)
    assert change(lambda: target.resize_(SIZE // 2)) == (SIZE, 2 * SIZE)  # old and new exist together
    assert change(lambda: target.resize_(1)) == (0, 0)  # a tensor that shrinks keeps its storage


def test_backward_frees_the_graph():
    w = torch.ones(SIZE // 4, device="accel", requires_grad=True)
    start = torch.accel.memory_allocated()
    y = w * 2
    z = (y * y).exp()
    assert torch.accel.memory_allocated() - start == 2 * SIZE  # y and z: exp needs its result, not y * y
    z.sum().backward()
    del y, z
    assert torch.accel.memory_allocated() - start == SIZE  # the gradient
    w.grad = None
    assert torch.accel.memory_allocated() == start


def test_training_keeps_a_constant_level():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).accel()
    optimizer = torch.optim.AdamW(model.parameters())
    levels = []
    for _ in range(6):
        loss = model(torch.ones(16, 64, device="accel")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del loss
        levels.append((torch.accel.memory_allocated(), torch.accel.max_memory_allocated()))
    assert len(set(levels[2:])) == 1, levels
    del model, optimizer


def test_errors_leave_nothing():
    x = torch.ones(100, 128, device="accel")
    start = torch.accel.memory_allocated()
    for wrong in (
        lambda: x @ x,
        lambda: torch.cat([x, x[0]]),
        lambda: torch.linalg.cholesky(-torch.eye(128, device="accel")),
        lambda: x.view(7),
        lambda: torch.add(x, x, out=torch.empty(3, dtype=torch.int64, device="accel")),
    ):
        with pytest.raises(RuntimeError):
            wrong()
    gc.collect()
    assert torch.accel.memory_allocated() == start


def test_memory_that_cannot_be_had():
    start = torch.accel.memory_allocated()
    for wrong in (
        lambda: buffer(1 << 60),
        lambda: torch.zeros(1 << 50, device="accel"),
        lambda: buffer().resize_(1 << 60),
    ):
        with pytest.raises(RuntimeError, match="(?i)memory|alloc|too (big|large)|overflow"):
            wrong()
        assert torch.accel.memory_allocated() == start
    assert buffer(512).fill_(3).sum().item() == 1536


def test_memory_freed_by_another_thread():
    start = torch.accel.memory_allocated()
    made = []
    maker = threading.Thread(target=lambda: made.extend(buffer() for _ in range(3)))
    maker.start()
    maker.join()
    assert torch.accel.memory_allocated() == start + 3 * SIZE
    freer = threading.Thread(target=made.clear)
    freer.start()
    freer.join()
    assert torch.accel.memory_allocated() == start

    def churn():
        for i in range(300):
            kept.append(buffer(512 * (1 + i % 5)))
            if len(kept) > 3:
                kept.pop(0)

    kept = []
    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.accel.memory_allocated() - start == sum(tensor.numel() for tensor in kept)
    kept.clear()
    assert torch.accel.memory_allocated() == start
    stats = torch.accel.memory_stats()
    for kind in ("allocated_bytes", "allocation"):
        total = stats[f"{kind}.all.allocated"] - stats[f"{kind}.all.freed"]
        assert stats[f"{kind}.all.peak"] >= stats[f"{kind}.all.current"] >= total


def test_cycles_are_freed_by_the_collector():
    start = torch.accel.memory_allocated()
    x = buffer()
    x.itself = [x]
    assert torch.accel.memory_allocated() == start + SIZE
    del x
    gc.collect()
    assert torch.accel.memory_allocated() == start


def test_a_fallback_holds_the_result_alone():
    x = torch.ones(SIZE // 4, device="accel")
    torch.accel._extension.set_op_policy("aten::sin", "fallback")
    try:
        with torch_accel.fallback("allow"):
            assert change(lambda: x.sin()) == (SIZE, SIZE)
            assert change(lambda: x.sin().sin())[0] == SIZE
    finally:
        torch.accel._extension.set_op_policy("aten::sin", "native")


# -------------------------------------------------------------------------------------------------- before use, and two
def test_before_the_first_use():
    forked.run_ok(
        """
        import torch
        for module in (torch.accel, torch.accelerator):
            assert module.memory_allocated() == module.max_memory_allocated() == 0
            assert module.memory_reserved() == module.max_memory_reserved() == 0
            assert module.memory_stats() == {}
            module.empty_cache()
        torch.accelerator.reset_peak_memory_stats()
        torch.accelerator.reset_accumulated_memory_stats()
        assert not torch.accel.is_initialized()
        assert torch.accel.memory_summary().startswith("accel:0")
        x = torch.empty(100, device="accel")
        assert torch.accel.memory_allocated() == torch.accel.max_memory_allocated() == 400
        """,
        TORCH_ACCEL_BACKEND="cpu",
    )


@pytest.mark.smoke
def test_two_devices_have_their_own_figures():
    forked.run_ok(
        """
        import torch
        a = torch.accel
        def figures():
            return a.memory_allocated(0), a.memory_allocated(1)
        x = torch.empty(100, device="accel:1")
        assert figures() == (0, 400) and a.memory_allocated() == 0
        a.set_device(1)
        assert a.memory_allocated() == a.memory_allocated("accel") == 400 and a.memory_allocated("accel:0") == 0
        y = x.to("accel:0")
        assert figures() == (400, 400)
        z = [y + 1, y @ y, y.view(10, 10).t().contiguous(), y.new_empty(25)]  # on 0, with 1 current
        assert figures() == (400 + 400 + 4 + 400 + 100, 400)
        del z
        assert a.max_memory_allocated(0) == 1304 and a.max_memory_allocated(1) == 400
        a.reset_peak_memory_stats(0)
        assert a.max_memory_allocated(0) == 400
        a.reset_accumulated_memory_stats(1)
        assert a.memory_stats(1)["allocated_bytes.all.allocated"] == 0 < a.memory_stats(0)["allocated_bytes.all.allocated"]
        w = y.requires_grad_() * 1
        w.sum().backward()
        assert figures() == (400 + 400 + 400, 400)
        y.grad = None
        del w
        with a.device(0):
            x.resize_(200)
            assert figures() == (400, 800) and a.memory_allocated() == 400
        assert a.memory_summary(0).startswith("accel:0") and a.memory_summary().startswith("accel:1")
        x.set_()
        del y
        assert figures() == (0, 0)
        """,
        TORCH_ACCEL_BACKEND="cpu,cpu",
    )
