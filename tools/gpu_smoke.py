"""A few checks of accel against the native device under it, where there is no pytest. Exit status 1 if one fails."""

import io
import sys

import torch

import torch_accel

native = torch.accel.get_device_properties(0).native_device


def arithmetic(device):
    x = torch.arange(24.0, device=device).view(4, 6)
    return (x.t()[1:] @ x / 7).relu_() + 1


def in_place(device):
    x = torch.zeros(4, 4, device=device)
    x[1:3].add_(2)[:, ::2].mul_(3)
    return x.t()


def gradient(device):
    x = torch.linspace(-1, 1, 64, device=device).view(8, 8).requires_grad_()
    torch.nn.functional.gelu(torch.nn.functional.linear(x, x)).sum().backward()
    return x.grad


def convolution(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()).to(device)
    return model(torch.linspace(-1, 1, 3 * 64, device=device).view(1, 3, 8, 8)).detach()


def attention(device):
    q = torch.linspace(-1, 1, 2 * 4 * 16 * 32, device=device).view(2, 4, 16, 32)
    return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)


def random(device):
    return torch.randn(100, device=device, generator=torch.Generator(device=device).manual_seed(3))


def half(device):
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        return torch.ones(8, 8, device=device) @ torch.full((8, 8), 0.1, device=device)


def saved(device):
    file = io.BytesIO()
    torch.save(torch.arange(5, device=device), file)
    file.seek(0)
    return torch.load(file)


failed = 0
for check in (arithmetic, in_place, gradient, convolution, attention, random, half, saved):
    try:
        actual, expected = check("accel"), check(native)
        assert actual.device.type == "accel", f"got a tensor on {actual.device}"
        assert actual.dtype == expected.dtype and actual.stride() == expected.stride(), "dtype or strides differ"
        assert torch.equal(actual.cpu(), expected.cpu()), "values differ"
        print("ok    ", check.__name__)
    except Exception as error:
        failed += 1
        print("FAILED", check.__name__, type(error).__name__, error)
fallbacks = torch_accel.counters()["fallbacks"]
print(f"fallbacks: {sum(entry['count'] for entry in fallbacks.values())}")
sys.exit(bool(failed or fallbacks))
