"""`python -m torch_accel demo`: train one small GPT twice, on `cpu` and on `accel`, and compare the two runs.

Everything that could differ for a reason other than the device is shared: the weights are drawn once on the CPU and
copied, the batches are drawn on the host, there is no dropout, and the optimizer is told which implementation to use
(torch's own choice depends on the device type). What is left is the arithmetic of the device.
"""

import argparse
import copy
import json
import math
import shutil
import sys
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, TextIO

import torch
import torch.nn as nn
import torch.nn.functional as F

import torch_accel
from torch_accel import accel, config, info

REFERENCE = "cpu"
SEED = 1
BATCH = 8
STEPS = 140
WARMUP_STEPS = 20
PEAK_LR = 3e-3
SAMPLE_BYTES = 240

# Where other kernels run, float32 rounding differs, and training amplifies it: only early steps are compared closely.
EARLY_STEPS = 100
EARLY_TOLERANCE = 2e-3
LAST_TOLERANCE = 0.01

TOLERANCE_TEXT = (
    f"0.0 (every loss bit for bit equal) where the device runs the CPU's own kernels (native route over cpu); else "
    f"at most {EARLY_TOLERANCE:g} in each of the first {EARLY_STEPS} losses and {LAST_TOLERANCE:.0%} in the last loss"
)


# --- the model ---


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a GPT. The default has about a million parameters."""

    vocabulary: int = 256
    context: int = 128
    layers: int = 5
    heads: int = 4
    width: int = 128


class Block(nn.Module):
    """One transformer layer, normalised before each half: causal self-attention, then a two-layer perceptron."""

    def __init__(self, sizes: GPTConfig) -> None:
        super().__init__()
        width = sizes.width
        self.heads = sizes.heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.query_key_value(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x))))


class GPT(nn.Module):
    """A decoder-only transformer. The output layer shares its weight with the token embedding."""

    def __init__(self, sizes: GPTConfig) -> None:
        super().__init__()
        self.sizes = sizes
        self.token = nn.Embedding(sizes.vocabulary, sizes.width)
        self.position = nn.Embedding(sizes.context, sizes.width)
        blocks = [Block(sizes) for _ in range(sizes.layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(sizes.width)
        self.logits = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.logits.weight = self.token.weight
        self.apply(self._init)
        for block in blocks:
            # Each layer adds two terms to the residual stream; its variance shall not grow with the depth.
            for layer in (block.attention_out, block.mlp_out):
                nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * sizes.layers))

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (batch, length, vocabulary) for int64 tokens (batch, length <= context)."""
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x))


# --- the data and the training step ---


def load_text() -> torch.Tensor:
    """English text that every CPython carries, as int64 bytes on the CPU, shape (length,)."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()


def draw_batch(text: torch.Tensor, generator: torch.Generator, batch: int, length: int) -> torch.Tensor:
    """Random pieces of the text, int64 (batch, length + 1) on the CPU: inputs and, one byte later, targets."""
    starts = torch.randint(len(text) - length, (batch,), generator=generator)
    return torch.stack([text[start : start + length + 1] for start in starts.tolist()])


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to a tenth of the peak: another value at each step."""
    warmup = min(WARMUP_STEPS, steps)
    if step < warmup:
        return PEAK_LR * (step + 1) / warmup
    progress = (step - warmup + 1) / (steps - warmup)
    return PEAK_LR * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


class Trainer:
    """One copy of the model on one device, with its optimizer, its losses and the time that its steps took."""

    def __init__(self, model: GPT, device: str) -> None:
        self.model = copy.deepcopy(model).to(device)
        self.device = device
        self.losses: list[float] = []
        self.seconds: list[float] = []
        # foreach is stated here and below: its default depends on the device type, and the two forms round differently.
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=PEAK_LR, betas=(0.9, 0.95), weight_decay=0.1, foreach=True
        )

    def step(self, batch: torch.Tensor, lr: float) -> None:
        """One optimizer step on a batch from `draw_batch`."""
        start = time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        tokens = batch.to(self.device)
        logits = self.model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - start)

    def tokens_per_second(self) -> float:
        """Trained tokens per second. The first step is left out: it pays for what a device sets up only once."""
        seconds = self.seconds[1:] or self.seconds
        return BATCH * self.model.sizes.context * len(seconds) / sum(seconds)


@torch.no_grad()
def generate(model: GPT, prompt: torch.Tensor, count: int, device: str) -> bytes:
    """`count` sampled bytes that continue the prompt, int64 (context,) on the CPU.

    The window that the model sees always has the full length, so that a backend which compiles per shape does so once.
    Sampling is done on the host, so that all devices are asked the same question.
    """
    generator = torch.Generator().manual_seed(SEED)
    window = prompt.to(device)
    produced = bytearray()
    for _ in range(count):
        logits = model(window[None])[0, -1]
        choice = torch.multinomial(torch.softmax(logits / 0.7, 0).cpu(), 1, generator=generator)
        produced.append(int(choice))
        window = torch.cat([window[1:], choice.to(device)])
    return bytes(produced)


def train(trainers: list[Trainer], text: torch.Tensor, steps: int) -> None:
    """Give both trainers the same batches in turn, and show how they fare. Losses and times stay in the trainers."""
    reference, other = trainers
    generator = torch.Generator().manual_seed(SEED)
    progress = Progress(sys.stdout, steps)
    largest = 0.0
    progress.line(f"\n  step      lr  loss {reference.device:>9}  loss {other.device:>9}  largest difference")
    for step in range(steps):
        batch = draw_batch(text, generator, BATCH, reference.model.sizes.context)
        lr = learning_rate(step, steps)
        for trainer in trainers:
            trainer.step(batch, lr)
        losses = [trainer.losses[-1] for trainer in trainers]
        largest = max(largest, abs(losses[0] - losses[1]))
        speeds = ", ".join(f"{trainer.device} {trainer.tokens_per_second():,.0f}" for trainer in trainers)
        if step % max(1, steps // 12) == 0 or step == steps - 1:
            row = f"{step + 1:6d}  {lr:.4f}  {losses[0]:14.6f}  {losses[1]:14.6f}  {largest:18.3g}"
            progress.line(row if progress.live else f"{row}   tokens/s: {speeds}")
        progress.bar(step + 1, f"loss {losses[0]:.3f} {losses[1]:.3f}  tokens/s: {speeds}")
    progress.clear()


# --- the verdict ---


@dataclass(frozen=True)
class Comparison:
    """How far two loss curves part, and whether that is within the tolerance."""

    passed: bool
    max_difference: float
    max_at_step: int
    tolerance: str
    reason: str


def compare_losses(reference: list[float], other: list[float], exact: bool) -> Comparison:
    """Compare two loss curves of the same length under the tolerance in TOLERANCE_TEXT; NaN never passes.

    exact  True where both curves come from the same kernels, and must be equal bit for bit.
    """
    differences = [abs(a - b) for a, b in zip(reference, other, strict=True)]
    # A NaN compares false with everything, so it must be looked for, and must not hide behind a larger number.
    worst = max(range(len(differences)), key=lambda i: math.inf if math.isnan(differences[i]) else differences[i])
    early = differences[:EARLY_STEPS]
    last = differences[-1] / abs(reference[-1])
    if exact:
        tolerance = "0.0, every loss bit for bit equal"
        passed = all(difference == 0.0 for difference in differences)
        reason = f"step {worst + 1} differs by {differences[worst]:.3g}"
    else:
        tolerance = f"{EARLY_TOLERANCE:g} in the first {EARLY_STEPS} losses, {LAST_TOLERANCE:.0%} in the last"
        passed = all(difference <= EARLY_TOLERANCE for difference in early) and last <= LAST_TOLERANCE
        reason = f"largest early difference {max(early):.3g}, last loss {last:.3%} apart"
    return Comparison(passed, differences[worst], worst + 1, tolerance, "" if passed else reason)


def runs_cpu_kernels(device: str) -> bool:
    """True if the device executes torch's own CPU kernels, so that its results must equal the CPU's exactly."""
    kind = torch.device(device)
    if kind.type == "cpu":
        return True
    if kind.type != "accel":
        return False
    properties = accel.get_device_properties(kind)
    return properties.route == "native" and properties.native_device.startswith("cpu")


# --- what the user sees ---


class Progress:
    """A bar that is redrawn in place on a terminal; elsewhere only the lines above it, now and then."""

    def __init__(self, out: TextIO, steps: int) -> None:
        self.out = out
        self.steps = steps
        self.start = time.perf_counter()
        self.live = out.isatty()
        self.drawn = 0.0

    def bar(self, done: int, text: str) -> None:
        """Redraw the bar, at most ten times a second."""
        now = time.perf_counter()
        if not self.live or (now - self.drawn < 0.1 and done < self.steps):
            return
        self.drawn = now
        width = 24
        filled = width * done // self.steps
        left = (now - self.start) / max(done, 1) * (self.steps - done)
        line = f"{done / self.steps:4.0%} [{'#' * filled}{'.' * (width - filled)}] {text}  {left:3.0f} s left"
        columns = shutil.get_terminal_size().columns
        # "\x1b[K" clears what a longer line before this one has left.
        self.out.write("\r" + line[: columns - 1] + "\x1b[K")
        self.out.flush()

    def line(self, text: str) -> None:
        """Print a line that stays, above the bar."""
        self.clear()
        self.out.write(text + "\n")
        self.out.flush()

    def clear(self) -> None:
        """Take the bar away."""
        if self.live:
            self.out.write("\r\x1b[K")


def render_svg(curves: dict[str, list[float]], title: str, width: int = 720, height: int = 400) -> str:
    """Loss curves, one per name, over the step number, as the text of an SVG file."""
    left, right, top, bottom = 56, 16, 40, 44
    plot_width, plot_height = width - left - right, height - top - bottom
    longest = max(len(losses) for losses in curves.values())
    finite = [loss for losses in curves.values() for loss in losses if math.isfinite(loss)] or [0.0]
    low, high = math.floor(min(finite)), math.floor(max(finite)) + 1

    def x(step: int) -> float:
        return left + plot_width * step / max(longest, 2)

    def y(loss: float) -> float:
        return top + plot_height * (high - loss) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="22" font-size="14">{escape(title)}</text>',
    ]
    for loss in range(low, high + 1):
        parts.append(
            f'<line x1="{left}" x2="{width - right}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" stroke="#ddd"/>'
            f'<text x="{left - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss}</text>'
        )
    for step in sorted({round(longest * quarter / 4) for quarter in range(5)}):
        parts.append(
            f'<line x1="{x(step):.1f}" x2="{x(step):.1f}" y1="{top}" y2="{height - bottom}" stroke="#eee"/>'
            f'<text x="{x(step):.1f}" y="{height - bottom + 16}" text-anchor="middle">{step}</text>'
        )
    parts.append(
        f'<path d="M{left} {top}V{height - bottom}H{width - right}" fill="none" stroke="#333"/>'
        f'<text x="{left + plot_width / 2:.0f}" y="{height - 8}" text-anchor="middle">step</text>'
        f'<text transform="translate(16 {top + plot_height / 2:.0f}) rotate(-90)" text-anchor="middle">'
        "loss (nats per byte)</text>"
    )
    # The first curve is broad and pale, so that it still shows where the next one lies exactly on it.
    styles = [("#f2b179", 6.0), ("#1f4e8c", 1.5)]
    every = max(1, longest // 1000)
    for index, ((name, losses), (colour, thick)) in enumerate(zip(curves.items(), styles, strict=True)):
        points = " ".join(
            f"{x(step):.1f},{y(loss):.1f}" for step, loss in list(enumerate(losses, 1))[::every] if math.isfinite(loss)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{thick}"/>')
        row = top + 16 + 18 * index
        parts.append(
            f'<line x1="{width - 170}" x2="{width - 140}" y1="{row}" y2="{row}" stroke="{colour}" '
            f'stroke-width="{thick}"/><text x="{width - 132}" y="{row + 4}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def describe(device: str) -> str:
    """Which backend and native device stand behind a device string, in words."""
    if torch.device(device).type != "accel":
        return device
    row = accel.get_device_properties(device)
    return f"{device} (backend {row.backend}, {row.route} route, {row.native_device}: {row.name})"


def read_counters(device: str) -> dict[str, Any]:
    """The counters of torch_accel; empty ones if the compared device is none of its own."""
    if torch.device(device).type != "accel":
        return {"fallbacks": {}, "copies": {}}
    return torch_accel.counters()


# --- the command ---


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `demo`."""
    parser.description = (
        "Train a byte-level GPT of about a million parameters on the text of Python's own documentation, on cpu and on "
        "accel from the same seed, and compare the losses. Exit status 0 if they agree and no operator fell back to "
        f"the CPU, else 1. Tolerance: {TOLERANCE_TEXT}."
    ).replace("%", "%%")
    parser.add_argument("--backend", metavar="NAME", help="backend behind accel (default: the best one available)")
    parser.add_argument("--device", default="accel", help="device that is compared with cpu (default: %(default)s)")
    parser.add_argument("--steps", type=_positive, default=STEPS, metavar="N", help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write configuration, losses, times and counters")
    parser.add_argument(
        "--svg", type=Path, default=Path("out/demo.svg"), metavar="FILE", help="loss curves (default: %(default)s)"
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("expected at least one step")
    return value


def main(args: argparse.Namespace) -> int:
    """Run the demo with the options of `add_arguments`. Returns the exit status: 0, 1, 2 if there is no
    such device, or 130 after Ctrl-C."""
    if args.backend:
        config.override("backend", args.backend)
    try:
        torch.empty(0, device=args.device)
    except (RuntimeError, ValueError, AssertionError) as error:  # torch raises AssertionError where a build lacks CUDA
        print(f"demo: {error}", file=sys.stderr)
        return 2
    try:
        return run(args.device, args.steps, args.json, args.svg)
    except KeyboardInterrupt:
        print("\r\x1b[K" if sys.stdout.isatty() else "", "demo: interrupted", sep="")
        return 130


def run(device: str, steps: int, json_file: Path | None, svg_file: Path) -> int:
    """Train on REFERENCE and on `device`, report, and return the exit status."""
    sizes = GPTConfig()
    text = load_text()
    torch.manual_seed(SEED)
    initial = GPT(sizes)
    exact = runs_cpu_kernels(device)
    if torch.device(device).type == "accel":
        torch_accel.reset_counters()

    print(f"torch {torch.__version__}: {REFERENCE} and {describe(device)}")
    parameters = sum(parameter.numel() for parameter in initial.parameters())
    print(f"GPT with {parameters:,} parameters, {len(text):,} bytes of text, {BATCH} x {sizes.context} bytes per step")
    trainers = [Trainer(initial, REFERENCE), Trainer(initial, device)]
    reference, other = trainers
    train(trainers, text, steps)

    comparison = compare_losses(reference.losses, other.losses, exact)
    sample = generate(other.model, text[: sizes.context], SAMPLE_BYTES, device)
    counters = read_counters(device)
    fallbacks = sum(entry["count"] for entry in counters["fallbacks"].values())

    print(f"\nsample from {device}:")
    print("\n".join("  | " + line for line in sample.decode(errors="replace").splitlines()))
    print("\ntokens/s: " + ", ".join(f"{t.device} {t.tokens_per_second():,.0f}" for t in trainers))
    for direction, entry in counters["copies"].items():
        print(f"copies {direction.replace('_', ' ')}: {entry['count']:,} ({entry['bytes']:,} bytes)")
    print(f"fallbacks: {fallbacks}")
    for name, entry in counters["fallbacks"].items():
        print(f"  {name}: {entry['count']} calls, {entry['bytes']:,} bytes, from {', '.join(entry['sources'])}")

    svg_file.parent.mkdir(parents=True, exist_ok=True)
    names = {f"{REFERENCE} (reference)": reference.losses, other.device: other.losses}
    svg_file.write_text(render_svg(names, f"Loss on {REFERENCE} and {device}"))
    print(f"loss curves: {svg_file}")

    passed = comparison.passed and fallbacks == 0
    if json_file:
        about = info.collect()
        report = {
            "passed": passed,
            "config": {**vars(sizes), "parameters": parameters, "batch": BATCH, "steps": steps, "seed": SEED},
            "versions": about["versions"],
            "device_table": about["devices"],
            "devices": {"reference": REFERENCE, "device": device},
            "losses": {"reference": reference.losses, "device": other.losses},
            "seconds": {"reference": sum(reference.seconds), "device": sum(other.seconds)},
            "tokens_per_second": {"reference": reference.tokens_per_second(), "device": other.tokens_per_second()},
            "comparison": vars(comparison),
            "fallbacks": fallbacks,
            "counters": counters,
        }
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(report, indent=1) + "\n")

    print(f"largest difference of the losses: {comparison.max_difference:.3g} (tolerance: {comparison.tolerance})")
    if not comparison.passed:
        print(f"FAILED: the losses part: {comparison.reason}")
    if fallbacks:
        print(f"FAILED: expected no operator to fall back to the CPU, got {fallbacks} calls")
    if passed:
        last = other.losses[-20:]  # batches differ a lot, so one loss says little
        mean = sum(last) / len(last)
        print(f"OK: {steps} steps, loss {other.losses[0]:.3f} -> {mean:.3f} (mean of the last {len(last)})")
    return 0 if passed else 1
