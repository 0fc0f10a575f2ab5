"""Proves that every operator of torch's own operator database does on accel, bit for bit, what it does natively.

Samples are made once, on the CPU, and rebuilt for the native device and for accel with the same storages, strides,
offsets and sharing. The two calls then have to agree in all that a user can see: values (NaN equals NaN, but -0.0 is
not 0.0), dtype, sizes, strides, offset, storage size, conj and neg bits, which results lie over which arguments, what
became of the arguments and of the memory around them, gradients, warnings, and the type and text of errors. All calls
start from the same seed, so random operators take part in full; where an operator returns uninitialised memory, it is
filled, as deterministic mode does.
"""

import functools
import itertools
import re
import unittest
import warnings
from collections import Counter

import pytest
import torch
from helpers import SEED, reference, tensors_in
from opinfo_report import PROPERTY
from torch.testing._internal.common_methods_invocations import SampleInput, op_db
from torch.utils._pytree import tree_map_only

import torch_accel

# All samples for the first of these that an operator supports, some for the others.
DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64)
SOME = 3
SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
GUARD = 77

# OpInfos whose results are not compared in some dtypes, or that have none: {name: (dtypes, reason)}.
CHUNKED = ([torch.bfloat16], "torch chooses the dtype to accumulate in by the name of the device (bfloat16 only)")
NO_KERNEL = ([], "torch has no CPU kernel; the error is compared")
EXCEPTED = {
    "nn.functional.linear_cross_entropy.chunked": CHUNKED,
    "nn.functional.linear_cross_entropy.chunked_none": CHUNKED,
    "torch.ops.aten._efficient_attention_forward": NO_KERNEL,
    "torch.ops.aten._flash_attention_forward": NO_KERNEL,
    "jiterator_2inputs_2outputs": NO_KERNEL,
    "jiterator_4inputs_with_extra_args": NO_KERNEL,
    "jiterator_binary": NO_KERNEL,
    "jiterator_binary_return_by_ref": NO_KERNEL,
    "jiterator_unary": NO_KERNEL,
}
# These return memory as they find it, or (lstsq, its driver gelsy) let it steer a computation: fill it.
FILLED = (
    *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
    *("linalg.lstsq",),
)
# Their samples leave the device to its default, which is the CPU.
FACTORIES = ("arange", "linspace", "logspace")
# torch wants these operators' tensor arguments on the CPU whatever the device of the input.
HOST_ARGUMENTS = ("tensor_split",)
# torch records another node for devices other than the CPU; the values are the same.
SAME_NODE = {"NativeDropoutBackward0": "MulBackward0"}
QUICK = ("add", "mm", "abs", "view", "cat", "sum", "softmax", "index_put", "sort", "normal", "empty_like", "addmm")


# --------------------------------------------------------------------------------------------------- rebuilding samples
class Rebuild:
    """Rebuilds samples on a device as fresh leaf tensors: what shares storage or is one object in the samples given to
    one Rebuild, does and is so in what they become."""

    def __init__(self, device, requires_grad=True):
        self.device = torch.device(device)
        self.requires_grad = requires_grad
        self.storages = {}
        self.tensors = {}

    def __call__(self, value):
        if isinstance(value, torch.Tensor) and value.device.type == "cpu":
            if id(value) not in self.tensors:
                self.tensors[id(value)] = (self.tensor(value), value)  # holds `value`, or its id may come again
            return self.tensors[id(value)][0]
        if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            items = [self(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, dict):
            return {name: self(item) for name, item in value.items()}
        if isinstance(value, torch.Generator):
            return torch.Generator(self.device).set_state(value.get_state())
        if isinstance(value, torch.device) and value.type == "cpu":
            return self.device
        return str(self.device) if isinstance(value, str) and value == "cpu" else value

    @torch.no_grad()
    def tensor(self, tensor):
        if tensor.layout == torch.strided:
            out = self.strided(tensor)
        elif tensor.layout == torch.sparse_coo:
            out = torch.sparse_coo_tensor(
                self(tensor._indices()),
                self(tensor._values()),
                tensor.shape,
                is_coalesced=tensor.is_coalesced(),
                check_invariants=False,
            )
        else:
            parts = [self(part(tensor)) for _, part in PARTS[tensor.layout]]
            out = torch.sparse_compressed_tensor(*parts, tensor.shape, layout=tensor.layout, check_invariants=False)
        return out.detach().requires_grad_(tensor.requires_grad and self.requires_grad)

    def strided(self, tensor):
        if tensor._is_zerotensor():
            return torch._efficientzerotensor(tensor.shape, dtype=tensor.dtype, device=self.device)
        storage = tensor.untyped_storage()
        if storage._cdata not in self.storages:
            data = torch.empty(0, dtype=torch.uint8).set_(storage).to(self.device, copy=True)
            self.storages[storage._cdata] = (data.untyped_storage(), storage)
        out = torch.empty(0, dtype=tensor.dtype, device=self.device)
        out.set_(self.storages[storage._cdata][0], tensor.storage_offset(), tensor.shape, tensor.stride())
        out = out.conj() if tensor.is_conj() else out
        return torch._neg_view(out) if tensor.is_neg() else out


class Spread(Rebuild):
    """Rebuilds every strided tensor with gaps, as each second row and column of a larger one full of guard values."""

    def strided(self, tensor):
        leading, last = tensor.shape[:-2], tensor.shape[-2:]
        larger = torch.full([*leading, *(2 * n + 1 for n in last or [1])], GUARD, device=self.device).to(tensor.dtype)
        out = larger[(..., *(slice(1, None, 2) for _ in last))] if last else larger[1]
        return out.copy_(tensor)


class Case:
    """A sample on the native device and on accel."""

    def __init__(self, op, sample):
        self.sides = []
        for device in (reference(), "accel"):
            rebuild = Rebuild(device)
            rebuild_args = Rebuild(reference()) if op.name in HOST_ARGUMENTS else rebuild
            self.sides.append((rebuild(sample.input), rebuild_args(sample.args), rebuild(sample.kwargs)))
        self.inputs = [tensors_in(side) for side in self.sides]
        self.versions = [[t._version for t in side] for side in self.inputs]
        self.process = sample.output_process_fn_grad

    def changed(self, i):
        return [t._version != version for t, version in zip(self.inputs[i], self.versions[i], strict=True)]


# ------------------------------------------------------------------------------------------------------------ comparing
ROWS = [("crow_indices", torch.Tensor.crow_indices), ("col_indices", torch.Tensor.col_indices)]
COLUMNS = [("ccol_indices", torch.Tensor.ccol_indices), ("row_indices", torch.Tensor.row_indices)]
VALUES = [("values", torch.Tensor.values)]
PARTS = {
    torch.sparse_coo: [
        ("is_coalesced", torch.Tensor.is_coalesced),
        ("indices", torch.Tensor._indices),
        ("values", torch.Tensor._values),
    ],
    torch.sparse_csr: ROWS + VALUES,
    torch.sparse_bsr: ROWS + VALUES,
    torch.sparse_csc: COLUMNS + VALUES,
    torch.sparse_bsc: COLUMNS + VALUES,
}


def node(tensor):
    name = type(tensor.grad_fn).__name__
    return SAME_NODE.get(name, name)


FACTS = {
    "dtype": lambda t: t.dtype,
    "layout": lambda t: t.layout,
    "size": lambda t: t.shape,
    "requires_grad": lambda t: t.requires_grad,
    "grad_fn": node,
    "being a view": torch.Tensor._is_view,
    "being an inference tensor": torch.Tensor.is_inference,
    "conj bit": torch.Tensor.is_conj,
    "neg bit": torch.Tensor.is_neg,
    "zero bit": torch.Tensor._is_zerotensor,
}
STRIDED_FACTS = {
    "stride": torch.Tensor.stride,
    "storage_offset": torch.Tensor.storage_offset,
    "storage bytes": lambda t: t.untyped_storage().nbytes(),
}


def same_values(one, other):
    """Two tensors of one size, dtype and layout, both on the CPU."""
    flat = [torch.empty(t.shape, dtype=t.dtype).copy_(t) for t in (one, other)]
    if torch.equal(*(t.view(-1).view(torch.uint8) for t in flat)):
        return True
    if one.is_complex():
        flat = [torch.view_as_real(t) for t in flat]
    if not flat[0].is_floating_point():
        return False
    one, other = (t.double() for t in flat)
    return bool(((one.isnan() & other.isnan()) | ((one == other) & (one.signbit() == other.signbit()))).all())


def neutral(text):
    """The text of an error, a warning or a repr without what depends on the device."""
    text = re.sub(r", device='\w+(:\d+)?'", "", text)
    return re.sub(r"\b(accel|cpu|cuda|privateuseone|PrivateUse1|CPU|CUDA)(:\d+)?", "<device>", text)


def compare(native, accel, where, values=True):
    """Asserts that two results agree; `values` says whether the elements of tensors have to."""
    assert type(native) is type(accel), f"{where}: {type(native)} natively, {type(accel)} on accel"
    if isinstance(native, torch.Tensor):
        strided = native.layout == accel.layout == torch.strided
        for name, get in itertools.chain(FACTS.items(), STRIDED_FACTS.items() if strided else ()):
            one, other = get(native), get(accel)
            assert one == other, f"{where}: {name}: {one} natively, {other} on accel"
        if not strided:
            for name, part in PARTS[native.layout]:
                compare(part(native), part(accel), f"{where}.{name}", values)
        elif values and native.numel() and not native._is_zerotensor():
            one, other = native.detach().cpu(), accel.detach().cpu()
            assert same_values(one, other), f"{where}: values differ:\n{one}\n{other}"
    elif isinstance(native, (tuple, list)):
        assert len(native) == len(accel), f"{where}: {len(native)} items natively, {len(accel)} on accel"
        for i, (one, other) in enumerate(zip(native, accel, strict=True)):
            compare(one, other, f"{where}[{i}]", values)
    elif isinstance(native, dict):
        assert native.keys() == accel.keys(), f"{where}: keys {native.keys()} natively, {accel.keys()} on accel"
        for name in native:
            compare(native[name], accel[name], f"{where}[{name!r}]", values)
    else:
        assert neutral(repr(native)) == neutral(repr(accel)), f"{where}: {native!r} natively, {accel!r} on accel"


def compare_memory(native, accel, where):
    """Asserts that the storages of two lists of tensors agree: what lies between the elements of a tensor, too."""
    for i, (one, other) in enumerate(zip(native, accel, strict=True)):
        if one.layout == torch.strided and not one._is_zerotensor():
            flat = [
                torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage()).cpu() for t in (one, other)
            ]
            assert flat[0].shape == flat[1].shape, f"{where}[{i}]: sizes of the storages differ"
            assert same_values(*flat), f"{where}[{i}]: memory differs:\n{flat[0]}\n{flat[1]}"


def sharing(tensors):
    """For each tensor the first in the list that lies over the same storage."""
    keys = [t.untyped_storage()._cdata if t.layout == torch.strided else id(t) for t in tensors]
    return [keys.index(key) for key in keys]


def seed():
    """torch.manual_seed without what makes it slow: it keeps a traceback for each kind of device that is not in use."""
    torch.default_generator.manual_seed(SEED)
    for device in {reference().type, "accel"} - {"cpu"}:
        torch.get_device_module(device).manual_seed_all(SEED)


class Outcome:
    """What a call did: its value or error, and the warnings."""

    def __init__(self, call, *args):
        self.value = self.error = None
        seed()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self.value = call(*args)
            except Exception as error:
                self.error = error
        # "Sparse CSR tensor support is in beta state" comes whenever such a tensor is made, an alias of one, too.
        said = [(w.category, neutral(str(w.message))) for w in caught]
        self.warnings = [(category, text) for category, text in said if "support is in beta state" not in text]


def compare_outcomes(native, accel, where):
    """Asserts the same value, or the same error, and the same warnings. True if there is a value."""
    assert type(native.error) is type(accel.error), f"{where}: {native.error!r} natively, {accel.error!r} on accel"
    one, other = (neutral(str(outcome.error)) for outcome in (native, accel))
    assert one == other, f"{where}: text of the error:\n{native.error}\n{accel.error}"
    assert native.warnings == accel.warnings, f"{where}: warnings: {native.warnings}\n{accel.warnings}"
    compare(native.value, accel.value, where)
    return native.error is None


# --------------------------------------------------------------------------------------------------------------- checks
def check_call(call, case, where):
    """Runs call(input, args, kwargs) on both devices. Returns the two outcomes, or None if both raised."""
    outcomes = [Outcome(call, *side) for side in case.sides]
    fine = compare_outcomes(*outcomes, where)
    # A call that fails may leave an out= that is resized and not yet written.
    compare(*case.inputs, f"{where}: arguments afterwards", values=fine)
    if not fine:
        return None
    # Where torch skips the dispatcher for the CPU, it also skips to note that a resized out= has changed.
    changed = [accel or not native for native, accel in zip(case.changed(0), case.changed(1), strict=True)]
    assert all(changed), f"{where}: versions: {case.changed(0)} natively, {case.changed(1)} on accel"
    compare_memory(*case.inputs, f"{where}: arguments afterwards")
    results = [tensors_in(outcome.value) for outcome in outcomes]
    shared = [sharing(case.inputs[i] + results[i]) for i in (0, 1)]
    assert shared[0] == shared[1], (
        f"{where}: arguments and results share storage as {shared[0]}, on accel as {shared[1]}"
    )
    assert all(t.device.type == "accel" for t in results[1]), f"{where}: results on {[t.device for t in results[1]]}"
    return outcomes


def check_forward(op, case, where):
    return check_call(lambda input, args, kwargs: op(input, *args, **kwargs), case, where)


def check_error(op, case, where):
    return check_forward(op, case, where) is None


def differentiable(tensors):
    """Those that can have a gradient, each once."""
    return list({id(t): t for t in tensors if t.requires_grad}.values())


def cotangents(tensors):
    """A gradient for each tensor, from the seed."""
    generator = torch.Generator().manual_seed(SEED)
    return [
        torch.randn(t.shape, dtype=t.dtype, generator=generator) if t.layout == torch.strided else t.detach().clone()
        for t in tensors
    ]


def check_backward(case, outcomes, twice, where):
    """Compares the gradients, and their gradients if `twice`. False if there is nothing to differentiate."""
    outputs = [differentiable(tensors_in(case.process(outcome.value))) for outcome in outcomes]
    inputs = [differentiable(side) for side in case.inputs]
    assert len(outputs[0]) == len(outputs[1]), f"{where}: differentiable results"
    for order in ("backward", "double backward")[: 1 + twice]:
        if not outputs[0] or not inputs[0]:
            return order != "backward"
        given = [Rebuild(device)(cotangents(outputs[0])) for device in (reference(), "accel")]
        # Nodes are numbered by thread, and run, and add up, by their numbers. In a graph with nodes of two backward
        # passes the order is the same on all devices only if these passes stay in one thread.
        with torch.autograd.set_multithreading_enabled(not twice):
            gradients = [
                Outcome(functools.partial(torch.autograd.grad, allow_unused=True, create_graph=twice), *arguments)
                for arguments in zip(outputs, inputs, given, strict=True)
            ]
        if not compare_outcomes(*gradients, f"{where}: {order}"):
            return False
        outputs = [differentiable(tensors_in(gradient.value)) for gradient in gradients]
    return True


def check_inplace(op, sample, where):
    def call(input, args, kwargs):
        input = input.clone() if input.requires_grad else input
        result = op.inplace_variant(input, *args, **kwargs)
        return result, result is input

    case = Case(op, sample)
    outcomes = check_call(call, case, f"{where}: in-place")
    if outcomes and op.supports_inplace_autograd:
        check_backward(case, outcomes, False, f"{where}: in-place")
    return outcomes is not None


# Targets for out=, made from the expected result.
OUT = {
    "of the right size": lambda t: torch.full_like(t, GUARD, device="cpu"),
    "that is empty": lambda t: torch.empty(0, dtype=t.dtype),
    "of the wrong size": lambda t: torch.full((*t.shape, 2), GUARD).to(t.dtype),
    "with gaps": lambda t: Spread("cpu")(torch.full(t.shape, GUARD).to(t.dtype)),
    "of another dtype": lambda t: torch.zeros(t.shape, dtype=torch.int32 if t.is_floating_point() else torch.float64),
}


def check_out(op, sample, expected, where):
    """Returns how many kinds of targets were written."""

    def call(input, args, kwargs):
        result = op(input, *args, **kwargs)
        pairs = zip(tensors_in(result), tensors_in(kwargs["out"]), strict=True)
        return result, [one is other for one, other in pairs]

    written = 0
    sample = rebuilt(sample, Rebuild("cpu", requires_grad=False))
    for kind, make in OUT.items():
        out = {"out": tree_map_only(torch.Tensor, make, expected)}
        case = Case(op, SampleInput(sample.input, args=sample.args, kwargs={**sample.kwargs, **out}))
        written += check_call(call, case, f"{where}: out= {kind}") is not None
    return written


def rebuilt(sample, rebuild):
    return SampleInput(rebuild(sample.input), args=rebuild(sample.args), kwargs=rebuild(sample.kwargs))


class Checks:
    """Runs all checks of one OpInfo, counts them and collects what they found."""

    def __init__(self, op):
        self.op = op
        self.counts = Counter(OpInfos=1)
        self.faults = []

    def attempt(self, kind, check, *args):
        try:
            result = check(*args)
        except Exception as error:
            text = str(error) if isinstance(error, AssertionError) else f"{args[-1]}: {error!r}"
            self.faults.append(text)
            return None
        self.counts[kind] += result if isinstance(result, int) else result is not None
        return result

    def sample(self, kind, sample, backward, twice, where):
        case = Case(self.op, sample)
        outcomes = self.attempt(kind, check_forward, self.op, case, where)
        if outcomes and backward:
            self.attempt("backward", check_backward, case, outcomes, twice, where)
        return outcomes

    def dtype(self, dtype, limit):
        op = self.op
        backward = op.supports_autograd and dtype in op.supported_backward_dtypes(reference().type)
        for i, sample in enumerate(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=backward), limit)):
            where = f"{op.full_name} {dtype} sample {i}"
            if op.name in FACTORIES:
                sample.kwargs.setdefault("device", "cpu")
            twice = op.supports_gradgrad and i < SOME
            outcomes = self.sample("samples", sample, backward, twice, where)
            if i >= SOME:
                continue
            gaps = rebuilt(sample, Spread("cpu"))
            self.sample("samples with gaps", gaps, backward, False, f"{where} with gaps")
            if op.inplace_variant is not None:
                self.attempt("in-place", check_inplace, op, sample, where)
                self.attempt("in-place", check_inplace, op, gaps, f"{where} with gaps")
            if op.supports_out and outcomes:
                self.attempt("out=", check_out, op, sample, outcomes[0].value, where)

    def sparse(self, layout):
        op = self.op
        backward = op.supports_autograd
        try:
            samples = op.sample_inputs_sparse(layout, "cpu", torch.float32, requires_grad=backward)
            samples = list(itertools.islice(samples, SOME))
        except (NotImplementedError, unittest.SkipTest):  # the database has none
            return
        for i, sample in enumerate(samples):
            self.sample("sparse samples", sample, backward, False, f"{op.full_name} {layout} sample {i}")

    def errors(self):
        op = self.op
        for i, error in enumerate(op.error_inputs("cpu")):
            where = f"{op.full_name} error input {i}"
            self.attempt("error inputs", check_error, op, Case(op, error.sample_input), where)


@pytest.fixture(autouse=True)
def every_warning():
    if reference().type != "cpu":
        pytest.skip("to the bit only over CPU kernels: CUDA's sums by atomic additions do not repeat themselves")
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.fixture
def filled(request):
    torch.use_deterministic_algorithms(request.param)
    yield
    torch.use_deterministic_algorithms(False)


def as_parameter(op):
    return pytest.param(
        op, op.name in FILLED, id=op.full_name, marks=[pytest.mark.smoke] if op.full_name in QUICK else []
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op, filled", [as_parameter(op) for op in op_db], indirect=["filled"])
def test_opinfo(op, filled, record_property):
    checks = Checks(op)
    excepted, reason = EXCEPTED.get(op.full_name, ([], None))
    supported = op.supported_dtypes(reference().type) or DTYPES[:1]
    dtypes = [dtype for dtype in DTYPES if dtype in supported] or sorted(supported, key=str)[:1]
    for i, dtype in enumerate(dtypes):
        if dtype not in excepted:
            checks.dtype(dtype, SOME if i else None)
    for layout in SPARSE:
        if torch.float32 in dtypes and op.supports_sparse_layout(layout):
            checks.sparse(layout)
    if op.error_inputs_func is not None:
        checks.errors()
    named = [f"{op.full_name}: {reason}"] if reason else []
    record_property(PROPERTY, {"counts": dict(checks.counts), "excepted": named})
    assert not checks.faults, f"{len(checks.faults)} faults\n" + "\n".join(checks.faults[:20])
    assert bool(checks.counts["samples"]) == (EXCEPTED.get(op.full_name) is not NO_KERNEL), f"results: {checks.counts}"
    assert torch_accel.counters()["fallbacks"] == {}
