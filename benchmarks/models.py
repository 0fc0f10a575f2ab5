"""Small models that the benchmarks train: a CNN and an MLP, and the GPT of the demo, each with one batch of data."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from torch_accel import demo

CLASSES = 10


def cnn() -> nn.Module:
    """Three convolutions with batch norm: float32 images (batch, 3, 32, 32) -> logits (batch, CLASSES); 94k weights."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128):
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def mlp() -> nn.Module:
    """Three linear layers, float32 (batch, 784) -> logits (batch, CLASSES); 0.3M parameters."""
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, CLASSES))


def workloads() -> dict[str, tuple[nn.Module, torch.Tensor, torch.Tensor]]:
    """Name -> model, inputs and int64 targets of one batch, all on the CPU and the same at each call."""
    torch.manual_seed(0)
    gpt = demo.GPT(demo.GPTConfig())
    tokens = demo.draw_batch(demo.load_text(), torch.Generator().manual_seed(0), demo.BATCH, gpt.sizes.context)
    return {
        "GPT": (gpt, tokens[:, :-1], tokens[:, 1:]),
        "CNN": (cnn(), torch.randn(32, 3, 32, 32), torch.randint(CLASSES, (32,))),
        "MLP": (mlp(), torch.randn(64, 784), torch.randint(CLASSES, (64,))),
    }


def training_step(name: str, device: str, autocast: torch.dtype | None = None) -> Callable[[], torch.Tensor]:
    """A call that makes one training step of `workloads()[name]` on `device` and returns the loss, a tensor there.

    The call does not wait for the device. With `autocast`, forward and loss run under torch.autocast with this dtype.
    """
    model, inputs, targets = workloads()[name]
    model, inputs, targets = model.to(device), inputs.to(device), targets.to(device)
    # foreach is stated because its default depends on the device type.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    kind = torch.device(device).type

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=autocast, enabled=autocast is not None):
            logits = model(inputs)
            loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
