"""Proves the layers and functions of torch.nn, forward and backward, bit for bit against the native device: convolutions,
normalisations with their running statistics, embeddings, pooling, losses, resampling."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from helpers import check, check_grads, moved, on_accel, reference, same

nn = torch.nn


def randn(*shape, **kwargs):
    return torch.randn(*shape, **kwargs).requires_grad_()


# ------------------------------------------------------------------------------------------------------------ convolutions
CONVS = {
    "1d": (nn.Conv1d, (2, 4, 11)),
    "2d": (nn.Conv2d, (2, 4, 9, 8)),
    "3d": (nn.Conv3d, (2, 4, 6, 5, 7)),
    "transposed 1d": (nn.ConvTranspose1d, (2, 4, 11)),
    "transposed 2d": (nn.ConvTranspose2d, (2, 4, 9, 8)),
    "transposed 3d": (nn.ConvTranspose3d, (2, 4, 6, 5, 7)),
}
CONV_OPTIONS = {
    "plain": {},
    "no bias": {"bias": False},
    "stride": {"stride": 2},
    "padding": {"padding": 2},
    "dilation": {"dilation": 2, "padding": 2},
    "groups": {"groups": 2},
    "depthwise": {"groups": 4},
    "all": {"stride": 2, "padding": 1, "dilation": 2, "groups": 2},
}


@pytest.mark.smoke
@pytest.mark.parametrize("options", CONV_OPTIONS)
@pytest.mark.parametrize("name", CONVS)
def test_convolutions(name, options):
    make, shape = CONVS[name]
    module = make(4, 8, 3, **CONV_OPTIONS[options])
    check_grads(lambda m, x: m(x), module, randn(*shape))
    check(lambda m, x: m(x), module, torch.randn(*shape[1:]))  # without a batch


@pytest.mark.parametrize("mode", ["same", "valid", "reflect", "replicate", "circular"])
def test_convolution_padding_modes(mode):
    kwargs = {"padding": mode} if mode in ("same", "valid") else {"padding": 1, "padding_mode": mode}
    for make, shape in list(CONVS.values())[:3]:
        check_grads(lambda m, x: m(x), make(4, 3, 3, **kwargs), randn(*shape))


def test_transposed_convolution_output_size():
    module = nn.ConvTranspose2d(4, 3, 3, stride=2, output_padding=1, padding=1)
    check_grads(lambda m, x: m(x), module, randn(2, 4, 5, 5))
    check_grads(
        lambda m, x: m(x, output_size=(9, 10)), nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1), randn(2, 4, 5, 5)
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_convolution_dtypes(dtype):
    check_grads(lambda m, x: m(x), nn.Conv2d(4, 8, 3).to(dtype), randn(2, 4, 9, 8, dtype=dtype))


def test_complex_convolution():
    check_grads(lambda m, x: m(x), nn.Conv2d(2, 3, 3, dtype=torch.complex64), randn(1, 2, 5, 5, dtype=torch.complex64))


def test_convolution_layouts():
    image, module = torch.randn(2, 4, 9, 8), nn.Conv2d(4, 8, 3, padding=1)
    last = image.to(memory_format=torch.channels_last).requires_grad_()
    result = check_grads(lambda m, x: m(x), module, last)
    assert result["outputs"][0].is_contiguous(memory_format=torch.channels_last)
    check_grads(lambda m, x: m(x), module.to(memory_format=torch.channels_last), last)
    volume = torch.randn(2, 4, 5, 5, 5).to(memory_format=torch.channels_last_3d).requires_grad_()
    check_grads(lambda m, x: m(x), nn.Conv3d(4, 6, 3), volume)
    check_grads(lambda m, x: m(x.transpose(2, 3)[..., 1:]), module, randn(2, 4, 8, 9))
    check_grads(lambda m, x: m(x[:1].expand(3, -1, -1, -1)), module, randn(2, 4, 8, 9))
    check_grads(lambda m, x: m(x), module, randn(0, 4, 8, 9))


def test_convolution_without_some_gradients():
    x, w, b = torch.randn(2, 4, 9), torch.randn(8, 4, 3), torch.randn(8)
    for asked in itertools.product([False, True], repeat=3):
        if any(asked):
            check_grads(F.conv1d, *[t.clone().requires_grad_(a) for t, a in zip((x, w, b), asked, strict=True)])


def test_double_backward_of_a_convolution():
    def penalty(m, x):
        (grad,) = torch.autograd.grad(m(x).square().sum(), x, create_graph=True)
        return grad.square().sum()

    check_grads(penalty, nn.Conv2d(3, 4, 3, groups=1, padding=1), randn(2, 3, 6, 6))
    check_grads(penalty, nn.ConvTranspose1d(3, 4, 3, stride=2), randn(2, 3, 6))


def test_convolution_errors():
    for device in ("cpu", "accel"):
        with pytest.raises(RuntimeError, match="to have 4 channels"):
            nn.Conv2d(4, 8, 3, device=device)(torch.ones(1, 3, 9, 9, device=device))
        with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
            nn.Conv2d(4, 8, 3, device=device)(torch.ones(1, 4, 2, 2, device=device))
    with pytest.raises(RuntimeError, match="accel:0"):
        nn.Conv2d(4, 8, 3, device="accel")(torch.ones(1, 4, 9, 9))


# ---------------------------------------------------------------------------------------------------------- normalisations
NORMS = {
    "batch 1d": (lambda **k: nn.BatchNorm1d(4, **k), (5, 4, 7)),
    "batch 1d of rows": (lambda **k: nn.BatchNorm1d(4, **k), (5, 4)),
    "batch 2d": (lambda **k: nn.BatchNorm2d(4, **k), (5, 4, 3, 7)),
    "batch 3d": (lambda **k: nn.BatchNorm3d(4, **k), (5, 4, 3, 2, 3)),
    "instance 1d": (lambda **k: nn.InstanceNorm1d(4, affine=True, **k), (5, 4, 7)),
    "instance 2d": (lambda **k: nn.InstanceNorm2d(4, affine=True, track_running_stats=True, **k), (5, 4, 3, 7)),
    "layer": (lambda **k: nn.LayerNorm((3, 7)), (5, 4, 3, 7)),
    "layer without affine": (lambda **k: nn.LayerNorm(7, elementwise_affine=False), (5, 4, 3, 7)),
    "layer without bias": (lambda **k: nn.LayerNorm(7, bias=False), (5, 4, 3, 7)),
    "group": (lambda **k: nn.GroupNorm(2, 4), (5, 4, 3, 7)),
    "rms": (lambda **k: nn.RMSNorm(7), (5, 4, 3, 7)),
    "local response": (lambda **k: nn.LocalResponseNorm(2), (5, 4, 3, 7)),
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", NORMS)
def test_normalisations(name):
    make, shape = NORMS[name]

    def steps(m, x):
        # Running statistics move with each step and are read in eval mode.
        outputs = [m(x), m(x + 1)]
        m.eval()
        return outputs + [m(x)]

    check_grads(steps, make(), randn(*shape))


@pytest.mark.parametrize(
    "options", [{"momentum": None}, {"affine": False}, {"track_running_stats": False}, {"eps": 0.1}]
)
def test_batch_norm_options(options):
    check_grads(lambda m, x: [m(x), m(x * 2), m.eval()(x)], nn.BatchNorm2d(4, **options), randn(5, 4, 3, 7))


def test_running_statistics_are_updated_in_place():
    module = nn.BatchNorm2d(4, device="accel")
    mean, var, count = module.running_mean, module.running_var, module.num_batches_tracked
    view, address = mean[1:], mean.data_ptr()
    x = torch.randn(8, 4, 5, 5, device="accel") + 3
    module(x)
    assert module.running_mean is mean and module.running_var is var and module.num_batches_tracked is count
    assert mean.data_ptr() == address and count.item() == 1
    same(view, mean[1:])
    assert (mean > 0.2).all()
    torch.testing.assert_close(mean, 0.1 * x.mean((0, 2, 3)))
    torch.testing.assert_close(var, 0.9 + 0.1 * x.var((0, 2, 3)))
    before = mean.clone()
    module.eval()(x)
    same(mean, before)


def test_batch_norm_layouts_and_dtypes():
    image = torch.randn(5, 4, 3, 7)
    check_grads(lambda m, x: m(x), nn.BatchNorm2d(4), image.to(memory_format=torch.channels_last).requires_grad_())
    check_grads(lambda m, x: m(x.transpose(2, 3)), nn.BatchNorm2d(4), image.clone().requires_grad_())
    check_grads(
        lambda m, x: m(x), nn.BatchNorm2d(4), image.bfloat16().requires_grad_()
    )  # mixed: parameters stay float32
    check_grads(lambda m, x: m(x), nn.BatchNorm2d(4).double(), image.double().requires_grad_())
    check_grads(lambda m, x: m(x), nn.LayerNorm(7), image.transpose(0, 1).requires_grad_())
    # Torch's gradient formula keeps channels_last on the CPU alone: sums run in another order here.
    last = image.to(memory_format=torch.channels_last).requires_grad_()
    check_grads(lambda m, x: m(x), nn.GroupNorm(2, 4), last, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="more than 1 value"):
        nn.BatchNorm1d(4, device="accel")(torch.ones(1, 4, device="accel"))


def test_double_backward_of_normalisations():
    def penalty(m, x):
        (grad,) = torch.autograd.grad(m(x).square().sum(), x, create_graph=True)
        return grad.square().sum()

    for module in (nn.BatchNorm1d(4), nn.BatchNorm1d(4).eval(), nn.LayerNorm(4), nn.GroupNorm(2, 4)):
        check_grads(penalty, module.double(), randn(6, 4, dtype=torch.float64))


def test_weight_and_spectral_norm():
    check_grads(lambda m, x: m(x), nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), randn(3, 5))
    torch.manual_seed(0)
    module = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4))
    check_grads(lambda m, x: [m(x), m.eval()(x)], module, randn(3, 5))
    check_grads(lambda m, x: m(x), nn.utils.parametrizations.orthogonal(nn.Linear(5, 5)), randn(3, 5))


# -------------------------------------------------------------------------------------------------------------- embeddings
@pytest.mark.parametrize(
    "options", [{}, {"padding_idx": 2}, {"max_norm": 0.5}, {"scale_grad_by_freq": True}, {"sparse": True}]
)
def test_embedding(options):
    ids = torch.tensor([[1, 2, 2], [0, 5, 1]])
    result = check_grads(lambda m, i: m(i), nn.Embedding(6, 4, **options), ids)
    grad = result["parameters 0"]["weight"]
    assert grad.is_sparse == bool(options.get("sparse"))
    check_grads(lambda m, i: m(i.int()), nn.Embedding(6, 4, **options), ids[:, 0])
    check(lambda m, i: m(i[:0]), nn.Embedding(6, 4, **options), ids)


@pytest.mark.smoke
def test_embedding_index_errors_and_devices():
    module = nn.Embedding(6, 4, device="accel")
    with pytest.raises(IndexError, match="index out of range"):
        module(torch.tensor([6], device="accel"))
    with pytest.raises(RuntimeError, match="accel:0"):
        module(torch.tensor([1]))
    on_accel(module(torch.tensor([1], device="accel")))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag(mode, sparse):
    if mode == "max" and sparse:
        for device in ("cpu", "accel"):
            module = nn.EmbeddingBag(6, 4, mode=mode, sparse=True, device=device)
            with pytest.raises(ValueError, match="sparse"):
                module(torch.tensor([[1, 2]], device=device))
        return
    make = lambda **k: nn.EmbeddingBag(6, 4, mode=mode, sparse=sparse, **k)  # noqa: E731
    ids, offsets = torch.tensor([1, 2, 2, 0, 5, 1]), torch.tensor([0, 2, 2, 5])
    check_grads(lambda m, i, o: m(i, o), make(), ids, offsets)
    check_grads(lambda m, i: m(i.view(2, 3)), make(), ids)
    check_grads(lambda m, i, o: m(i, o), make(padding_idx=2), ids, offsets)
    check_grads(lambda m, i, o: m(i, o), make(include_last_offset=True), ids, torch.tensor([0, 2, 2, 6]))
    check_grads(lambda m, i, o: m(i, o), make(max_norm=0.5), ids, offsets)
    if mode == "sum":
        check_grads(lambda m, i, o, w: m(i, o, w), make(), ids, offsets, randn(6))
    with torch.no_grad():
        check(lambda m, i, o: m(i, o), make(), ids.int(), offsets.int())


def test_embedding_bag_internals():
    """The second and later results are what backward needs; they are on the device, too."""
    weight, ids, offsets = torch.randn(6, 4), torch.tensor([1, 2, 2, 0]), torch.tensor([0, 2])
    for mode in (0, 1, 2):
        check(lambda w, i, o, mode=mode: torch._embedding_bag(w, i, o, False, mode), weight, ids, offsets)


def test_one_hot():
    check(lambda i: F.one_hot(i), torch.tensor([[1, 2], [0, 4]]))
    check(lambda i: F.one_hot(i, 7), torch.tensor([1, 2]))


# ----------------------------------------------------------------------------------------------------------------- pooling
POOLS = {
    "max 1d": (lambda x: F.max_pool1d(x, 3, return_indices=True), (2, 3, 9)),
    "max 2d": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (2, 3, 9, 8)),
    "max 2d dilated, ceil": (lambda x: F.max_pool2d(x, 2, 2, dilation=2, ceil_mode=True), (2, 3, 9, 8)),
    "max 3d": (lambda x: F.max_pool3d(x, 2, return_indices=True), (2, 3, 4, 5, 6)),
    "avg 1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), (2, 3, 9)),
    "avg 2d": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (2, 3, 9, 8)),
    "avg 2d divisor": (lambda x: F.avg_pool2d(x, 3, ceil_mode=True, divisor_override=5), (2, 3, 9, 8)),
    "avg 3d": (lambda x: F.avg_pool3d(x, 2, 2, 1), (2, 3, 4, 5, 6)),
    "adaptive max 1d": (lambda x: F.adaptive_max_pool1d(x, 4, return_indices=True), (2, 3, 9)),
    "adaptive max 2d": (lambda x: F.adaptive_max_pool2d(x, (4, 3)), (2, 3, 9, 8)),
    "adaptive max 3d": (lambda x: F.adaptive_max_pool3d(x, 2), (2, 3, 4, 5, 6)),
    "adaptive avg 1d": (lambda x: F.adaptive_avg_pool1d(x, 4), (2, 3, 9)),
    "adaptive avg 2d": (lambda x: F.adaptive_avg_pool2d(x, (None, 3)), (2, 3, 9, 8)),
    "adaptive avg 2d to 1": (lambda x: F.adaptive_avg_pool2d(x, 1), (2, 3, 9, 8)),
    "adaptive avg 3d": (lambda x: F.adaptive_avg_pool3d(x, 2), (2, 3, 4, 5, 6)),
    "fractional max 2d": (
        lambda x: F.fractional_max_pool2d(x, 2, output_ratio=(0.6, 0.6), return_indices=True),
        (2, 3, 9, 8),
    ),
    "fractional max 3d": (lambda x: F.fractional_max_pool3d(x, 2, output_size=2), (2, 3, 5, 6, 7)),
    "lp": (lambda x: F.lp_pool2d(x.abs() + 0.1, 2.0, 2), (2, 3, 9, 8)),
    "unpool": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), (2, 3, 8, 8)),
    "unfold and fold": (lambda x: F.fold(F.unfold(x, 3, padding=1) * 2, (8, 8), 3, padding=1), (2, 3, 8, 8)),
    "pixel shuffle": (lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 4), (2, 4, 8, 8)),
    "channel shuffle": (lambda x: F.channel_shuffle(x, 2), (2, 4, 8, 8)),
}


@pytest.mark.parametrize("name", POOLS)
def test_pooling(name):
    function, shape = POOLS[name]
    check_grads(function, randn(*shape))
    if len(shape) == 4:
        check_grads(function, torch.randn(*shape).to(memory_format=torch.channels_last).requires_grad_())


# -------------------------------------------------------------------------------------------------------------- resampling
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area"])
def test_interpolate(mode):
    shape = {"linear": (2, 3, 7), "trilinear": (2, 3, 4, 5, 6)}.get(mode, (2, 3, 6, 7))
    spatial = len(shape) - 2
    aligned = [None] if mode.startswith("nearest") or mode == "area" else [False, True]
    for align in aligned:
        check_grads(lambda x, a=align: F.interpolate(x, scale_factor=1.7, mode=mode, align_corners=a), randn(*shape))
        check_grads(lambda x, a=align: F.interpolate(x, size=(4,) * spatial, mode=mode, align_corners=a), randn(*shape))
    if mode in ("bilinear", "bicubic"):
        check_grads(lambda x: F.interpolate(x, size=(3, 4), mode=mode, antialias=True), randn(*shape))
        last = torch.randn(*shape).to(memory_format=torch.channels_last).requires_grad_()
        check_grads(lambda x: F.interpolate(x, scale_factor=2, mode=mode), last)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample(mode, padding):
    grid = (torch.rand(2, 4, 5, 2) * 2.4 - 1.2).requires_grad_()
    for align in (False, True):
        check_grads(lambda x, g, a=align: F.grid_sample(x, g, mode, padding, a), randn(2, 3, 6, 7), grid)
    if mode != "bicubic":
        check_grads(lambda x, g: F.grid_sample(x, g, mode, padding, False), randn(1, 2, 3, 4, 5), randn(1, 2, 3, 2, 3))


def test_affine_grid_and_padding():
    check_grads(lambda t: F.affine_grid(t, (2, 3, 5, 6), align_corners=False), randn(2, 2, 3))
    for mode in ("constant", "reflect", "replicate", "circular"):
        check_grads(lambda x, mode=mode: F.pad(x, (2, 1), mode), randn(2, 3, 6))
        check_grads(lambda x, mode=mode: F.pad(x, (2, 1, 1, 2), mode), randn(2, 3, 6, 5))
        check_grads(lambda x, mode=mode: F.pad(x, (1, 1, 1, 1, 2, 0), mode), randn(1, 2, 3, 4, 5))
    check_grads(lambda x: F.pad(x, (-1, 2), value=3.0), randn(2, 6))


# ----------------------------------------------------------------------------------------------------------------- losses
def classes(*shape):
    return torch.randint(0, 5, shape)


LOSSES = {
    "cross_entropy": lambda: (F.cross_entropy, randn(6, 5), classes(6)),
    "cross_entropy of images": lambda: (F.cross_entropy, randn(2, 5, 3, 4), classes(2, 3, 4)),
    "cross_entropy of probabilities": lambda: (F.cross_entropy, randn(6, 5), torch.rand(6, 5)),
    "nll_loss": lambda: (lambda x, t, **k: F.nll_loss(x.log_softmax(1), t, **k), randn(6, 5), classes(6)),
    "nll_loss of images": lambda: (F.nll_loss, randn(2, 5, 3, 4), classes(2, 3, 4)),
    "mse_loss": lambda: (F.mse_loss, randn(6, 5), torch.randn(6, 5)),
    "l1_loss": lambda: (F.l1_loss, randn(6, 5), torch.randn(6, 5)),
    "smooth_l1_loss": lambda: (F.smooth_l1_loss, randn(6, 5), torch.randn(6, 5)),
    "huber_loss": lambda: (F.huber_loss, randn(6, 5), torch.randn(6, 5)),
    "soft_margin_loss": lambda: (F.soft_margin_loss, randn(6, 5), torch.randn(6, 5).sign()),
    "kl_div": lambda: (F.kl_div, randn(6, 5), torch.rand(6, 5)),
    "poisson_nll_loss": lambda: (F.poisson_nll_loss, randn(6, 5), torch.rand(6, 5)),
    "gaussian_nll_loss": lambda: (
        lambda x, t, **k: F.gaussian_nll_loss(x, t, torch.ones_like(x), **k),
        randn(6, 5),
        torch.randn(6, 5),
    ),
    "binary_cross_entropy": lambda: (
        lambda x, t, **k: F.binary_cross_entropy(x.sigmoid(), t, **k),
        randn(6),
        torch.rand(6),
    ),
    "bce with logits": lambda: (F.binary_cross_entropy_with_logits, randn(6, 5), torch.rand(6, 5)),
    "multi_margin_loss": lambda: (F.multi_margin_loss, randn(6, 5), classes(6)),
    "multilabel_margin_loss": lambda: (F.multilabel_margin_loss, randn(6, 5), classes(6, 5)),
    "multilabel_soft_margin_loss": lambda: (
        F.multilabel_soft_margin_loss,
        randn(6, 5),
        classes(6, 5).clamp(max=1).float(),
    ),
    "hinge_embedding_loss": lambda: (F.hinge_embedding_loss, randn(6), torch.randn(6).sign()),
    "cosine_embedding_loss": lambda: (
        lambda x, t, **k: F.cosine_embedding_loss(x, x.flip(0) + 1, t, **k),
        randn(6, 5),
        torch.randn(6).sign(),
    ),
    "triplet_margin_loss": lambda: (
        lambda x, t, **k: F.triplet_margin_loss(x, t, x.flip(0), **k),
        randn(6, 5),
        torch.randn(6, 5),
    ),
    "margin_ranking_loss": lambda: (
        lambda x, t, **k: F.margin_ranking_loss(x, x.flip(0) * 2, t, **k),
        randn(6),
        torch.randn(6).sign(),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    function, x, target = LOSSES[name]()
    for reduction in ("mean", "sum", "none"):
        check_grads(lambda x, t, r=reduction: function(x, t, reduction=r), x, target)


def test_loss_options():
    weight = torch.rand(5)
    check_grads(lambda x, t, w: F.cross_entropy(x, t, w, ignore_index=2), randn(6, 5), classes(6), weight)
    check_grads(lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.2), randn(6, 5), classes(6), weight)
    check_grads(lambda x, t, w: F.nll_loss(x, t, w), randn(6, 5), classes(6), weight)
    check_grads(
        lambda x, t, w: F.binary_cross_entropy_with_logits(x, t, w, pos_weight=w), randn(6, 5), torch.rand(6, 5), weight
    )
    check_grads(lambda x, t: F.cross_entropy(x, t), randn(0, 5), classes(0))
    for device in ("cpu", "accel"):
        with pytest.raises(IndexError, match="Target 5 is out of bounds"):
            F.cross_entropy(torch.ones(2, 5, device=device), torch.tensor([1, 5], device=device))


@pytest.mark.parametrize("lengths_on", ["cpu", "device"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ctc_loss(reduction, lengths_on):
    """Lengths may be tensors on either device, or plain tuples."""
    log_probs = torch.randn(9, 3, 6).log_softmax(2).requires_grad_()
    targets, lengths = torch.randint(1, 6, (3, 4)), (torch.tensor([9, 8, 7]), torch.tensor([4, 2, 3]))

    def run(x, t):
        sizes = lengths if lengths_on == "cpu" else [length.to(x.device) for length in lengths]
        return F.ctc_loss(x, t, *sizes, reduction=reduction, zero_infinity=True)

    check_grads(run, log_probs, targets)
    if lengths_on == "cpu":
        check_grads(lambda x, t: F.ctc_loss(x, t, (9, 8, 7), (4, 2, 3), reduction=reduction), log_probs, targets)
        flat = torch.cat([t[:n] for t, n in zip(targets, (4, 2, 3), strict=True)])
        check_grads(lambda x, t: F.ctc_loss(x, t, *lengths, reduction=reduction), log_probs, flat)


# --------------------------------------------------------------------------------------------------- distances, activations
def test_distances():
    for p in (0.5, 1.0, 2.0, 3.0, float("inf")):
        check_grads(lambda x, y, p=p: torch.cdist(x, y, p), randn(2, 5, 4), randn(2, 3, 4))
        check_grads(lambda x, p=p: F.pdist(x, p), randn(5, 4))
    check_grads(lambda x, y: torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist"), randn(5, 4), randn(30, 4))
    check_grads(F.cosine_similarity, randn(5, 4), randn(5, 4))
    check_grads(F.pairwise_distance, randn(5, 4), randn(5, 4))
    check_grads(F.bilinear, randn(5, 4), randn(5, 3), randn(2, 4, 3), randn(2))


ACTIVATIONS = [
    "relu",
    "relu6",
    "elu",
    "selu",
    "celu",
    "leaky_relu",
    "gelu",
    "silu",
    "mish",
    "softplus",
    "softsign",
    "hardtanh",
    "hardswish",
    "hardsigmoid",
    "hardshrink",
    "softshrink",
    "tanhshrink",
    "logsigmoid",
    "sigmoid",
    "tanh",
    "softmax",
    "softmin",
    "log_softmax",
    "glu",
    "normalize",
]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    function = getattr(F, name)
    kwargs = {"dim": 1} if name in ("softmax", "softmin", "log_softmax", "glu") else {}
    check_grads(lambda x: function(x, **kwargs), randn(5, 6) * 4)
    check_grads(lambda x: function(x, **kwargs), randn(5, 6))
    check_grads(lambda x: function(x.t(), **kwargs), randn(6, 5))
    check_grads(lambda x: function(x[::2, 1:5], **kwargs), randn(6, 6))
    if name in (
        "relu",
        "relu6",
        "elu",
        "selu",
        "celu",
        "leaky_relu",
        "silu",
        "mish",
        "hardtanh",
        "hardswish",
        "hardsigmoid",
    ):
        check_grads(lambda x: function(x * 1, inplace=True), randn(5, 6))


def test_activations_with_parameters():
    check_grads(lambda m, x: m(x), nn.PReLU(3), randn(2, 3, 4))
    check_grads(lambda x: F.gelu(x, approximate="tanh"), randn(5, 6))
    check_grads(lambda x: F.softplus(x, beta=2, threshold=1), randn(5, 6))
    check_grads(lambda x: F.threshold(x, 0.1, 20), randn(5, 6))


# ------------------------------------------------------------------------------------------------------ linear, whole models
@pytest.mark.smoke
def test_linear():
    for shape in ((5,), (3, 5), (2, 3, 5), (2, 2, 3, 5), (0, 5)):
        check_grads(lambda m, x: m(x), nn.Linear(5, 4), randn(*shape))
        check_grads(lambda m, x: m(x), nn.Linear(5, 4, bias=False), randn(*shape))
    # A weight that is a slice (known to go wrong on fast paths that skip a layout check).
    check_grads(lambda x, w, b: F.linear(x, w[1:, ::2], b[1:]), randn(3, 5), randn(5, 10), randn(5))
    check_grads(lambda x, w: F.linear(x.t(), w.t()), randn(5, 3), randn(5, 4))


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Dropout2d(0.2),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.GroupNorm(2, 8),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 5),
    )


@pytest.mark.smoke
def test_training_a_cnn_is_the_same_to_the_bit():
    def train(model, x, y):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.detach())
        return losses, dict(model.state_dict())

    losses, _ = check(train, cnn(), torch.randn(6, 3, 12, 12), torch.randint(0, 5, (6,)))
    assert losses[-1] < losses[0]


def test_module_life_cycle():
    model, x = cnn().eval(), torch.randn(2, 3, 12, 12)
    expected = moved(model, reference())(x.to(reference()))
    ours = moved(model, "accel")
    same(ours(x.to("accel")), expected)
    assert all(t.device.type == "accel" for t in ours.state_dict().values())

    fresh = cnn().to("accel").eval()
    assert fresh.load_state_dict(model.state_dict()) is not None  # from the CPU into the device
    same(fresh(x.to("accel")), expected)
    back = cnn().eval()
    back.load_state_dict(ours.state_dict())
    same(back.to(reference())(x.to(reference())), expected)
    assign = cnn().eval()
    assign.load_state_dict(ours.state_dict(), assign=True)
    same(assign(x.to("accel")), expected)

    ours.double().float().requires_grad_(False)
    same(ours(x.to("accel")), expected)
    half = moved(model, "accel").bfloat16()
    assert half(x.to("accel").bfloat16()).dtype == torch.bfloat16
    with torch.device("meta"):
        empty = cnn()
    empty = empty.to_empty(device="accel").eval()
    empty.load_state_dict(model.state_dict())
    same(empty(x.to("accel")), expected)
    with torch.device("accel"):
        torch.manual_seed(1)
        made = cnn()
    torch.manual_seed(1)
    same(dict(made.state_dict()), dict(cnn().state_dict()) if reference().type == "cpu" else dict(made.state_dict()))
    on_accel(list(made.state_dict().values()))


def test_buffers_hooks_and_lazy_modules():
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyBatchNorm1d()).to("accel")
    seen = []
    model[0].register_forward_hook(lambda m, args, out: seen.append(("forward", out.device.type)))
    model[0].register_full_backward_hook(lambda m, gi, go: seen.append(("backward", go[0].device.type)))
    out = model(torch.randn(3, 5, device="accel"))
    out.sum().backward()
    assert seen == [("forward", "accel"), ("backward", "accel")]
    assert model[0].weight.shape == (4, 5) and model[0].weight.grad.device.type == "accel"
    model.register_buffer("table", torch.arange(3.0))
    model.to("accel")
    assert model.table.device.type == "accel"


def test_parameter_utilities():
    model = cnn().to("accel")
    vector = nn.utils.parameters_to_vector(model.parameters())
    same(vector, nn.utils.parameters_to_vector(moved(model, "cpu").parameters()))
    nn.utils.vector_to_parameters(vector * 2, model.parameters())
    same(nn.utils.parameters_to_vector(model.parameters()), vector * 2)

    def clip(parameters):
        for i, p in enumerate(parameters):
            p.grad = torch.full_like(p, i + 1.0)
        norms = [nn.utils.clip_grad_norm_(parameters, 2.0, foreach=foreach) for foreach in (True, False)]
        nn.utils.clip_grad_value_(parameters, 0.01)
        return norms, nn.utils.get_total_norm([p.grad for p in parameters]), [p.grad for p in parameters]

    check(clip, [randn(3, 4), randn(5)])
