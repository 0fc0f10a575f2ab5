"""Proves attention: scaled dot product attention with each implementation that the backend has, its masks and gradients, and
the modules built on it, against the native device."""

import pytest
import torch
from helpers import check, check_grads, moved, on_accel, reference, same
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

BACKENDS = {
    "default": None,
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
}


def qkv(batch=2, heads=4, length=7, keys=None, size=8, kv_heads=None, dtype=torch.float32, grad=True):
    keys, kv_heads = keys or length, kv_heads or heads
    shapes = (batch, heads, length, size), (batch, kv_heads, keys, size), (batch, kv_heads, keys, size)
    return [torch.randn(shape, dtype=dtype).requires_grad_(grad) for shape in shapes]


def run(backend, function, *args, **kwargs):
    if backend is not None and BACKENDS[backend] is not None:
        with sdpa_kernel(BACKENDS[backend]):
            return function(*args, **kwargs)
    return function(*args, **kwargs)


def node_names(result):
    """Names of the autograd nodes that made a result: they tell which implementation ran."""
    seen, stack = set(), [result.grad_fn]
    while stack:
        function = stack.pop()
        if function is not None and function not in seen:
            seen.add(function)
            stack += [following for following, _ in function.next_functions]
    return {function.name() for function in seen}


# ------------------------------------------------------------------------------------------------------------------ plain
@pytest.mark.smoke
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
def test_forward_and_backward(backend, causal):
    check_grads(lambda *a: run(backend, sdpa, *a, is_causal=causal), *qkv())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(backend, dtype):
    check_grads(lambda *a: run(backend, sdpa, *a), *qkv(dtype=dtype))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["bool", "float", "broadcast", "per head"])
def test_masks(backend, kind):
    mask = {
        "bool": torch.rand(7, 9) > 0.3,
        "float": torch.randn(7, 9),
        "broadcast": torch.rand(2, 1, 1, 9) > 0.3,
        "per head": torch.randn(2, 4, 7, 9),
    }[kind]
    check_grads(lambda q, k, v, m: run(backend, sdpa, q, k, v, attn_mask=m), *qkv(keys=9), mask)


def test_gradient_of_a_mask():
    mask = torch.randn(7, 9, requires_grad=True)
    check_grads(lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), *qkv(keys=9), mask)


def test_a_row_without_any_key():
    mask = torch.ones(7, 7, dtype=torch.bool)
    mask[3] = False
    for backend in BACKENDS:
        check(lambda q, k, v, m, b=backend: run(b, sdpa, q, k, v, attn_mask=m), *qkv(grad=False), mask)


def test_options():
    check_grads(lambda *a: sdpa(*a, scale=0.3), *qkv())
    check_grads(lambda *a: sdpa(*a, dropout_p=0.4), *qkv())
    check_grads(lambda *a: run("math", sdpa, *a, dropout_p=0.4, is_causal=True), *qkv())
    check_grads(lambda q, k, v: sdpa(q[0], k[0], v[0]), *qkv())
    check_grads(lambda q, k, v: sdpa(q[0, 0], k[0, 0], v[0, 0], is_causal=True), *qkv())
    check_grads(lambda *a: sdpa(*a), *qkv(length=33, size=12))


@pytest.mark.parametrize("backend", BACKENDS)
def test_grouped_queries(backend):
    check_grads(lambda *a: run(backend, sdpa, *a, enable_gqa=True), *qkv(heads=8, kv_heads=2))
    check_grads(lambda *a: run(backend, sdpa, *a, enable_gqa=True, is_causal=True), *qkv(heads=6, kv_heads=3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_as_operands(backend):
    """The layouts of real models: heads split from one projection, an expanded and an offset operand."""

    def heads(projected):
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in projected.chunk(3, -1))
        return run(backend, sdpa, q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    check_grads(heads, torch.randn(2, 6, 96, requires_grad=True))
    check(lambda x: run(backend, sdpa, x[:, :, 1:], x[:1, :, ::2].expand(2, -1, -1, -1), x[:1, :, ::2].expand(2, -1, -1, -1)),
          torch.randn(2, 4, 9, 8))  # fmt: skip


def test_key_value_cache_in_place():
    """Decoding: keys and values are written into a larger buffer, attention reads a slice of it."""

    def decode(x, cache):
        outputs = []
        for step in range(4):
            cache[0, :, :, step] = x[:, :, step]
            cache[1, :, :, step].copy_(x[:, :, step] * 2)
            outputs.append(sdpa(x[:, :, step : step + 1], cache[0, :, :, : step + 1], cache[1, :, :, : step + 1]))
        return outputs, cache

    check(decode, torch.randn(2, 4, 4, 8), torch.zeros(2, 2, 4, 16, 8))


# ------------------------------------------------------------------------------------------------- which implementation runs
def test_the_same_implementation_as_on_the_native_device():
    for kwargs in ({}, {"is_causal": True}, {"dropout_p": 0.5}, {"scale": 1.0}):
        for data in (qkv(), qkv(dtype=torch.float64), qkv(grad=False)):
            choices = []
            for device in (reference(), "accel"):
                arguments = moved(data, device)
                choices.append(torch._fused_sdp_choice(*arguments, **kwargs))
            assert choices[0] == choices[1], f"{kwargs} {data[0].dtype}"


@pytest.mark.smoke
@pytest.mark.skipif("reference().type != 'cpu'", reason="names the kernel that the CPU has")
def test_forcing_an_implementation():
    flash = "ScaledDotProductFlashAttentionForCpuBackward0"
    arguments = moved(qkv(), "accel")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert flash in node_names(sdpa(*arguments))
    with sdpa_kernel(SDPBackend.MATH):
        names = node_names(sdpa(*arguments))
    assert flash not in names and {"BmmBackward0", "SafeSoftmaxBackward0"} <= names
    assert flash in node_names(sdpa(*arguments))


@pytest.mark.skipif("reference().type != 'cpu'", reason="CUDA has these implementations")
def test_an_implementation_that_the_backend_lacks_is_an_error_as_on_the_cpu():
    for backend in (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        for device in ("cpu", "accel"):
            arguments = moved(qkv(), device)
            with sdpa_kernel(backend), pytest.raises(RuntimeError, match="No viable backend|No available kernel"):
                sdpa(*arguments)


def test_errors_name_the_problem():
    q, k, v = moved(qkv(), "accel")
    for device in ("cpu", "accel"):
        q, k, v = (t.to(device) for t in (q, k, v))
        with sdpa_kernel(SDPBackend.MATH), pytest.raises(RuntimeError, match="is_causal"):
            sdpa(q, k, v, attn_mask=torch.ones(7, 7, dtype=torch.bool, device=device), is_causal=True)
        with pytest.raises(RuntimeError, match="dtype"):
            sdpa(q, k.double(), v)
        with pytest.raises(RuntimeError, match="size|match|shape"):
            sdpa(q, k[..., :4], v)


def test_double_backward_through_math():
    def twice(q, k, v):
        with sdpa_kernel(SDPBackend.MATH):
            out = sdpa(q, k, v)
        (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        return grad.sum()

    check_grads(twice, *qkv(dtype=torch.float64))


# ---------------------------------------------------------------------------------------------------------------- modules
@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 6, "vdim": 10}]
)
def test_multihead_attention(options):
    module = torch.nn.MultiheadAttention(16, 4, batch_first=True, **options)
    q = torch.randn(2, 5, 16, requires_grad=True)
    k, v = torch.randn(2, 7, options.get("kdim", 16)), torch.randn(2, 7, options.get("vdim", 16))
    check_grads(lambda m, q, k, v: m(q, k, v), module, q, k, v)
    check_grads(lambda m, q, k, v: m(q, k, v, need_weights=False)[0], module, q, k, v)
    check_grads(lambda m, q, k, v: m(q, k, v, average_attn_weights=False), module, q, k, v)


def test_multihead_attention_masks_and_dropout():
    module = torch.nn.MultiheadAttention(16, 4, dropout=0.3, batch_first=True)
    x = torch.randn(3, 6, 16, requires_grad=True)
    padding = torch.arange(6) >= torch.tensor([6, 4, 1])[:, None]
    causal = torch.nn.Transformer.generate_square_subsequent_mask(6)

    def call(m, x, padding, causal):
        return m(x, x, x, key_padding_mask=padding.float().masked_fill(padding, -torch.inf), attn_mask=causal)

    check_grads(call, module, x, padding, causal)
    check_grads(lambda m, x, p: m(x, x, x, key_padding_mask=p, need_weights=False)[0], module, x, padding)
    check_grads(lambda m, x, c: m(x, x, x, attn_mask=c, is_causal=True, need_weights=False)[0], module, x, causal)


def test_multihead_attention_fast_path():
    """In inference torch takes one fused operator where it can."""
    for batch_first in (True, False):
        module = torch.nn.MultiheadAttention(16, 4, batch_first=batch_first).eval()
        x = torch.randn(3, 6, 16)
        with torch.inference_mode():
            check(lambda m, x: m(x, x, x), module, x)
            check(lambda m, x: m(x, x, x, need_weights=False)[0], module, x)


LAYERS = {
    "encoder": lambda **k: torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, **k),
    "encoder norm first": lambda **k: torch.nn.TransformerEncoderLayer(
        16, 4, 32, batch_first=True, norm_first=True, **k
    ),
    "encoder gelu": lambda **k: torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu", **k),
}


@pytest.mark.parametrize("name", LAYERS)
def test_encoder_layer(name):
    x = torch.randn(2, 5, 16, requires_grad=True)
    padding = torch.arange(5) >= torch.tensor([5, 3])[:, None]
    module = LAYERS[name](dropout=0.2)
    check_grads(lambda m, x: m(x), module, x)
    check_grads(lambda m, x, p: m(x, src_key_padding_mask=p), module, x, padding)
    module.eval()
    with torch.no_grad():  # the fused operator, also with a mask
        check(lambda m, x: m(x), module, x)
        check(lambda m, x, p: m(x, src_key_padding_mask=p), module, x, padding)


def test_encoder_decoder_and_whole_transformer():
    torch.manual_seed(3)
    model = torch.nn.Transformer(16, 4, 1, 1, 32, dropout=0.1, batch_first=True)
    source, target = torch.randn(2, 6, 16, requires_grad=True), torch.randn(2, 4, 16, requires_grad=True)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(4)
    check_grads(lambda m, s, t, mask: m(s, t, tgt_mask=mask, tgt_is_causal=True), model, source, target, mask)
    model.eval()
    with torch.no_grad():
        check(lambda m, s, t: m(s, t), model, source, target)


@pytest.mark.filterwarnings("ignore:.*nested tensors.*:UserWarning")
def test_encoder_stack_with_padding_in_inference():
    """Torch packs padded input into a nested tensor here; accel has to give the right numbers whichever way it takes."""
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0)
    for nested in (False, True):
        model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()
        x, padding = torch.randn(2, 5, 16), torch.arange(5) >= torch.tensor([5, 3])[:, None]
        with torch.no_grad():
            expected = moved(model, reference())(x.to(reference()), src_key_padding_mask=padding.to(reference()))
            actual = moved(model, "accel")(x.to("accel"), src_key_padding_mask=padding.to("accel"))
        on_accel(actual)
        # Nested packing pads differently and takes other kernels: rounding only.
        same(actual[0], expected[0], rtol=1e-5, atol=1e-5)
        same(actual[1, :3], expected[1, :3], rtol=1e-5, atol=1e-5)
