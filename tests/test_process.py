"""Proves process behaviour: threads, fork before and after first use, data loader workers, clean exits, interrupts.

Most tests need a process of their own; each of those does several things, because starting one costs seconds.
"""

import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.multiprocessing
from helpers import python_command, run_ok, run_python, same


# -------------------------------------------------------------------------------------------------------------------- threads
@pytest.mark.smoke
def test_threads_share_tensors():
    x = torch.arange(1000.0, device="accel")
    out = torch.zeros(8, 1000, device="accel")
    errors = []

    def work(i):
        try:
            for _ in range(50):
                out[i] = (x * i).sin() + x.sum()
                out[i].add_(1).sub_(1)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    expected = torch.stack([(x.cpu() * i).sin() + x.cpu().sum() for i in range(8)]).add_(1).sub_(1)
    same(out, expected)


def test_threads_allocate_and_free():
    before = torch.accel.memory_allocated()
    kept = []

    def work():
        for n in range(200):
            t = torch.empty(n + 1, device="accel")
            t.resize_(2 * n + 1)
        kept.append(torch.ones(10, device="accel"))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.accel.memory_allocated() - before == 8 * 40
    kept.clear()
    assert torch.accel.memory_allocated() == before


def test_a_tensor_outlives_the_thread_that_made_it():
    made = []
    thread = threading.Thread(target=lambda: made.append(torch.ones(3, device="accel", requires_grad=True)))
    thread.start()
    thread.join()
    (made[0] * 2).sum().backward()
    assert made[0].grad.tolist() == [2.0, 2.0, 2.0]


def test_current_device_belongs_to_the_thread_and_first_use_may_race():
    run_ok(
        """
        import threading, torch
        barrier, results, errors = threading.Barrier(6), [], []

        def work(i):
            try:
                barrier.wait()
                x = torch.ones(10, device="accel") * i     # all six are the first use
                torch.accel.set_device(i % 2)
                y = torch.ones(2, device="accel")
                for _ in range(20):
                    assert torch.accel.current_device() == i % 2
                    assert torch.randn(3, device="accel").device.index == i % 2
                results.append((x.sum().item(), y.device.index))
            except Exception as error:
                errors.append(repr(error))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert not errors, errors
        assert sorted(results) == sorted((10.0 * i, i % 2) for i in range(6)), results
        assert torch.accel.current_device() == 0
        """,
        TORCH_ACCEL_BACKEND="cpu,cpu",
    )


# ------------------------------------------------------------------------------------------------------------ before first use
@pytest.mark.smoke
def test_nothing_is_opened_before_the_device_is_used():
    """Import, CPU work with backward, seeds and questions leave the device closed; a fork is then harmless."""
    out = run_ok(
        """
        import os, torch

        def closed():
            return not torch.accel.is_initialized()

        assert closed() and torch.accel._extension.is_resolved() is False
        pid = os.fork()                                # before first use: everything works in both
        y = torch.ones(3, device="accel", requires_grad=True) if pid == 0 else None
        if pid == 0:
            (y * 2).sum().backward()
            assert y.grad.tolist() == [2.0, 2.0, 2.0]
            print("child", flush=True)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0 and closed()
        x = torch.randn(3, requires_grad=True)
        x.exp().sum().backward()                       # the engine asks for all devices here
        assert x.grad is not None and closed()
        torch.manual_seed(1)
        with torch.random.fork_rng(devices=[]):
            torch.rand(2)
        model = torch.nn.Linear(3, 3)
        torch.optim.AdamW(model.parameters()).step()
        torch.autograd.gradcheck(torch.sin, (torch.randn(3, dtype=torch.float64, requires_grad=True),))
        assert closed()
        assert torch.accel.is_available() and torch.accelerator.is_available() and torch.accel.device_count() == 1
        assert torch.accel._is_in_bad_fork() is False and closed()

        pid = os.fork()                                # still before first use; torch itself keeps backward from the
        y = torch.ones(3, device="accel") * 2          # child of a process that has run one where devices exist
        assert y.sum().item() == 6.0
        if pid == 0:
            print("child", flush=True)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        (x * 2).sum().backward()                       # a CPU backward after first use
        print("parent", torch.accel.is_initialized())
        """
    )
    assert out.split("\n") == ["child", "child", "parent True", ""]


def test_fork_after_use_is_an_error_in_the_child_and_leaves_the_parent():
    out = run_ok(
        """
        import os, torch
        x = torch.ones(3, device="accel")
        g = torch.Generator(device="accel")

        def attempt(name, call):
            try:
                call()
            except RuntimeError as error:
                text = str(error)
                assert "torch_accel" in text and "fork" in text and "spawn" in text, text
            else:
                print("no error from", name)

        pid = os.fork()
        if pid == 0:
            assert torch.accel._is_in_bad_fork()
            attempt("factory", lambda: torch.ones(1, device="accel"))
            attempt("to", lambda: torch.ones(1).to("accel"))
            attempt("accel()", lambda: torch.ones(1).accel())
            attempt("operator", lambda: x + 1)
            attempt("in-place", lambda: x.add_(1))
            attempt("set_device", lambda: torch.accel.set_device(0))
            attempt("stream", torch.accel.current_stream)
            attempt("rng state", torch.accel.get_rng_state)
            attempt("random", lambda: torch.rand(2, device="accel", generator=g))
            attempt("item", lambda: x.sum().item())
            torch.manual_seed(0)                       # every program does that; it must not raise
            host = torch.randn(3, requires_grad=True)  # the CPU still works
            host.exp().sum().backward()
            del x, g
            print("child done", flush=True)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        x.add_(1)
        y = torch.randn(3, device="accel", requires_grad=True)
        (x * y).sum().backward()
        assert y.grad.tolist() == [2.0, 2.0, 2.0] and not torch.accel._is_in_bad_fork()
        print("parent fine")
        """
    )
    assert out == "child done\nparent fine\n"


# ---------------------------------------------------------------------------------------------------------------- data loaders
LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return torch.full((3,), float(i)), {"label": i, "name": str(i)}


class OnTheDevice(Rows):
    def __getitem__(self, i):
        return torch.ones(2, device="accel").cpu()


if __name__ == "__main__":
    torch.ones(2, device="accel")
    for context in ("fork", "spawn"):
        loader = DataLoader(
            Rows(), 4, num_workers=2, pin_memory=True, multiprocessing_context=context, persistent_workers=context == "fork"
        )
        for epoch in range(2 if context == "fork" else 1):
            total = 0.0
            for rows, extra in loader:
                assert rows.device.type == "cpu" and rows.is_pinned() and extra["label"].is_pinned(), context
                total += rows.to("accel", non_blocking=True).sum().item()
                assert extra["label"].to("accel").dtype == torch.int64
            assert total == 3 * sum(range(12)), total
        print(context)
    try:
        list(DataLoader(OnTheDevice(), num_workers=1, multiprocessing_context="fork"))
    except RuntimeError as error:
        assert "forked subprocess" in str(error) and "spawn" in str(error), error
        print("refused")
"""


def test_data_loader_workers(tmp_path):
    """Workers by fork and by spawn, with pinned batches, after the device has been used; a forked worker that uses the device
    itself reports the error."""
    script = tmp_path / "loader.py"
    script.write_text(LOADER)
    _, env = python_command("")
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stdout, done.stderr) == (0, "fork\nspawn\nrefused\n", "")


def test_pinned_memory_in_process():
    loader = torch.utils.data.DataLoader(torch.arange(8.0), 4, pin_memory=True)
    for batch in loader:
        assert batch.is_pinned() and batch.device.type == "cpu"
        same(batch.to("accel", non_blocking=True), batch)
    x = torch.randn(5)
    pinned = x.pin_memory()
    assert pinned.is_pinned() and not x.is_pinned() and pinned.pin_memory() is pinned
    assert pinned[1:3].is_pinned() and not pinned.clone().is_pinned()
    assert torch.empty(4, pin_memory=True).is_pinned()
    same(pinned, x)
    with pytest.raises(RuntimeError, match="pin"):
        torch.ones(3, device="accel").pin_memory()
    with pytest.raises(RuntimeError, match="pin"):
        torch.empty(3, device="accel", pin_memory=True)


def test_device_tensors_do_not_travel_between_processes():
    """CPU tensors do, by shared memory (see the loader); for the device's there is a clear error, before anything is sent."""
    x = torch.arange(3.0, device="accel")
    with pytest.raises(RuntimeError, match="only available on CPU"):
        ForkingPickler.dumps(x)
    same(pickle.loads(pickle.dumps(x)), x)
    assert x.share_memory_() is x and x.is_shared()


# ----------------------------------------------------------------------------------------------------------------------- exits
def test_a_clean_exit_prints_nothing():
    """Under -X dev, which reports leaks and late warnings: live tensors, graphs, streams, pinned memory, generators, threads."""
    done = run_python(
        """
        import threading, torch
        x = torch.randn(4, 4, device="accel", requires_grad=True)
        y = (x @ x).tanh()
        y.sum().backward()
        stream, event = torch.Stream(device="accel"), torch.Event("accel", enable_timing=True)
        event.record(stream)
        pinned = torch.randn(5).pin_memory()
        generator = torch.Generator(device="accel")
        torch.rand(3, device="accel", generator=generator)
        optimizer = torch.optim.AdamW([x])
        optimizer.step()
        class Holder:
            pass
        holder = Holder()
        holder.self, holder.tensor, holder.graph = holder, x, y    # a cycle that dies at exit
        threading.Thread(target=lambda: torch.ones(2, device="accel").sum().item()).start()
        x.register_hook(lambda g: g)
        """,
        flags=("-X", "dev"),
        PYTHONWARNINGS="default",
    )
    assert done.returncode == 0 and done.stdout == ""
    ours = [line for line in done.stderr.splitlines() if line.strip()]
    assert not ours, done.stderr


def test_exit_status_survives():
    done = run_python("import torch, sys; torch.ones(2, device='accel'); sys.exit(7)")
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_interrupt():
    """Ctrl-C in a loop of device work raises KeyboardInterrupt there, and the device goes on working; the one that nobody
    catches ends the process as usual."""
    command, env = python_command(
        """
        import sys, torch
        x = torch.randn(64, 64, device="accel", requires_grad=True)

        def work():
            print("working", flush=True)
            while True:
                y = (x @ x).tanh().sum()
                y.backward()
                x.grad = None

        for _ in range(3):
            try:
                work()
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            a = torch.ones(3, device="accel")
            print((a + a).tolist(), flush=True)
        work()
        """
    )
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tempfile.gettempdir()
    )
    timer = threading.Timer(120, process.kill)
    timer.start()
    try:
        for _ in range(3):
            assert process.stdout.readline() == "working\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "interrupted\n"
            assert process.stdout.readline() == "[2.0, 2.0, 2.0]\n"
        assert process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    finally:
        timer.cancel()
        process.kill()
    assert process.returncode == -signal.SIGINT and out == ""
    assert err.strip().endswith("KeyboardInterrupt") and err.count("Traceback") == 1
