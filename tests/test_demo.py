"""The demo: its verdict on two loss curves, its report, its exit status."""

import argparse
import io
import itertools
import json
import math
import xml.etree.ElementTree as ElementTree

import pytest
import torch

import torch_accel
from torch_accel import demo

CURVE = [5.0 / (1 + 0.01 * step) for step in range(150)]


@pytest.fixture
def run_demo(tmp_path, monkeypatch, capsys):
    """Run the demo for a few steps. Returns exit status, output and the JSON report."""
    monkeypatch.setattr(demo, "SAMPLE_BYTES", 4)

    def run(*options, steps=3):
        files = [f"--json={tmp_path / 'sub/demo.json'}", f"--svg={tmp_path / 'sub/demo.svg'}"]
        parser = argparse.ArgumentParser()
        demo.add_arguments(parser)
        status = demo.main(parser.parse_args([f"--steps={steps}", *files, *options]))
        report = tmp_path / "sub/demo.json"
        return status, capsys.readouterr().out, json.loads(report.read_text()) if report.is_file() else None

    return run


def changed(step, by):
    curve = list(CURVE)
    curve[step] += by
    return curve


@pytest.mark.parametrize("exact", [True, False])
def test_equal_curves_pass(exact):
    verdict = demo.compare_losses(CURVE, list(CURVE), exact)
    assert verdict.passed and verdict.max_difference == 0 and not verdict.reason


def test_exact_means_every_bit():
    step = 140
    verdict = demo.compare_losses(CURVE, changed(step, math.ulp(CURVE[step])), exact=True)
    assert not verdict.passed and verdict.max_at_step == step + 1 and verdict.reason


@pytest.mark.parametrize(
    ("step", "by", "passed"),
    [(99, 0.0019, True), (99, 0.0021, False), (100, 0.5, True), (149, 0.009, True), (149, 0.05, False)],
)
def test_tolerance_holds_early_steps_and_the_last(step, by, passed):
    for sign in (1, -1):
        assert demo.compare_losses(CURVE, changed(step, sign * by), exact=False).passed is passed


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("step", [0, 50, 149])
def test_nan_never_passes(exact, step):
    broken = changed(step, math.nan)
    for other in (CURVE, broken):
        verdict = demo.compare_losses(other, broken, exact)
        assert not verdict.passed and verdict.max_at_step == step + 1


def test_learning_rate_changes_at_each_step():
    rates = [demo.learning_rate(step, demo.STEPS) for step in range(demo.STEPS)]
    assert all(before != after for before, after in itertools.pairwise(rates))
    assert min(rates) > 0 and max(rates) == demo.PEAK_LR


def test_both_runs_start_from_the_same_weights_and_tied_weights_stay_tied():
    torch.manual_seed(0)
    model = demo.GPT(demo.GPTConfig(layers=1))
    trainer = demo.Trainer(model, "accel")
    assert trainer.model.logits.weight is trainer.model.token.weight
    for mine, theirs in zip(model.parameters(), trainer.model.parameters(), strict=True):
        assert theirs.device.type == "accel" and torch.equal(mine, theirs.cpu())


@pytest.mark.smoke
def test_report(run_demo, tmp_path):
    status, output, report = run_demo()
    assert status == 0, output
    assert "fallbacks: 0" in output.splitlines()
    assert report["passed"] and report["fallbacks"] == 0 and report["counters"]["fallbacks"] == {}
    assert report["config"]["steps"] == 3 and 9e5 < report["config"]["parameters"] < 1.2e6
    losses = report["losses"]
    assert len(losses["reference"]) == len(losses["device"]) == 3
    assert losses["reference"][0] == pytest.approx(math.log(256), abs=0.3)
    if demo.runs_cpu_kernels("accel"):
        assert losses["reference"] == losses["device"] and report["comparison"]["max_difference"] == 0
    assert all(speed > 0 for speed in report["tokens_per_second"].values())
    assert report["device_table"][0]["backend"] and report["versions"]["torch"] == torch.__version__
    assert report["counters"]["copies"]["host_to_device"]["count"] > 0

    root = ElementTree.parse(tmp_path / "sub/demo.svg").getroot()
    curves = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(curve.get("points").split()) for curve in curves] == [3, 3]


def test_losses_that_part_fail(run_demo, monkeypatch):
    step = demo.Trainer.step

    def perturbed(self, batch, lr):
        step(self, batch, lr)
        if self.device != demo.REFERENCE:
            self.losses[-1] += 0.1

    monkeypatch.setattr(demo.Trainer, "step", perturbed)
    status, output, report = run_demo()
    assert status == 1 and "FAILED: the losses part" in output
    assert not report["passed"] and report["comparison"]["max_difference"] == pytest.approx(0.1, abs=1e-3)


def test_fallbacks_fail(run_demo):
    operator = "aten::gelu"
    torch_accel._C.set_op_policy(operator, "fallback")
    try:
        with torch_accel.fallback("allow"):
            status, output, report = run_demo(steps=1)
    finally:
        torch_accel._C.set_op_policy(operator, "native")
    assert status == 1 and "fall back to the CPU" in output and operator in output
    assert report["fallbacks"] > 0 and not report["passed"]
    assert report["losses"]["reference"] == report["losses"]["device"] or not demo.runs_cpu_kernels("accel")


def test_interrupt_prints_one_line(run_demo, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "train", interrupt)
    status, output, report = run_demo()
    assert status == 130 and output.splitlines()[-1] == "demo: interrupted" and report is None


def test_device_that_is_not_there(run_ok):
    code = """
        import argparse, contextlib, io
        from torch_accel.__main__ import main
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            assert main(["demo", "--backend", "nonsense"]) == 2
        assert "nonsense" in errors.getvalue() and "cpu" in errors.getvalue(), errors.getvalue()
        assert "Traceback" not in errors.getvalue()
    """
    run_ok(code)


def test_zero_steps_are_refused(run_demo):
    with pytest.raises(SystemExit):
        run_demo(steps=0)


def test_progress_bar_stays_on_one_line(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "60")
    out = Terminal()
    progress = demo.Progress(out, 4)
    for step in range(4):
        progress.drawn = 0.0  # draw each one, however fast
        progress.bar(step + 1, "text " * 30)
    progress.line("a line that stays")
    drawn = out.getvalue()
    assert drawn.count("\n") == 1 and "100%" in drawn
    assert all(len(part.removesuffix("\x1b[K")) < 60 for part in drawn.split("\r"))


def test_without_a_terminal_there_is_no_bar():
    out = io.StringIO()
    progress = demo.Progress(out, 2)
    progress.bar(1, "text")
    progress.line("a line")
    assert out.getvalue() == "a line\n"


def test_curves_with_nan_still_make_a_picture():
    svg = demo.render_svg({"a & b": [2.0, math.nan, 1.0], "<c>": [math.nan] * 3}, "x < y")
    assert "nan" not in svg and ElementTree.fromstring(svg) is not None
