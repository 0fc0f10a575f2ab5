"""Proves linear algebra and Fourier transforms, forward and backward, bit for bit against the native device."""

import pytest
import torch
from helpers import check, check_grads, on_accel, same

linalg, fft = torch.linalg, torch.fft


def randn(*shape, **kwargs):
    return torch.randn(*shape, **kwargs).requires_grad_()


def spd(n, *batch, dtype=torch.float64):
    a = torch.randn(*batch, n, n, dtype=dtype)
    return (a @ a.mH + n * torch.eye(n, dtype=dtype)).requires_grad_()


F64 = {"dtype": torch.float64}
GENERAL = {
    "det": linalg.det,
    "slogdet": linalg.slogdet,
    "inv": linalg.inv,
    "inv_ex": lambda a: linalg.inv_ex(a)[0],
    "pinv": linalg.pinv,
    "svd": lambda a: linalg.svd(a)[1],
    "svd vectors": lambda a: (lambda u, s, v: u @ torch.diag_embed(s) @ v)(*linalg.svd(a, full_matrices=False)),
    "svdvals": linalg.svdvals,
    "qr": linalg.qr,
    "lu": linalg.lu,
    "lu_factor": lambda a: linalg.lu_factor(a)[0],
    "lu_solve": lambda a: linalg.lu_solve(*linalg.lu_factor(a), a + 1),
    "solve": lambda a: linalg.solve(a, a.mT + 1),
    "solve_triangular": lambda a: linalg.solve_triangular(a.triu(), a, upper=True),
    "eigvals": lambda a: linalg.eigvals(a).abs(),
    "matrix_power": lambda a: linalg.matrix_power(a, 5),
    "negative matrix_power": lambda a: linalg.matrix_power(a, -2),
    "matrix_exp": linalg.matrix_exp,
    "matrix_norm": lambda a: [linalg.matrix_norm(a, p) for p in ("fro", "nuc", 1, 2, -2, float("inf"))],
    "vector_norm": lambda a: [linalg.vector_norm(a, p, dim=-1) for p in (0, 1, 2, 3, float("inf"))],
    "cond": linalg.cond,
    "multi_dot": lambda a: linalg.multi_dot([a[0], a[1], a[0]]) if a.dim() == 3 else linalg.multi_dot([a, a.t(), a]),
    "tensorsolve": lambda a: linalg.tensorsolve(a, a[..., 0]) if a.dim() == 2 else a,
    "matmul": lambda a: a @ a,
    "cross": lambda a: linalg.cross(a[..., :3], a[..., 1:4] + 1),
    "householder": lambda a: linalg.householder_product(a, a[..., 0]),
    "vander": lambda a: linalg.vander(a[..., 0]),
}
SYMMETRIC = {
    "cholesky": linalg.cholesky,
    "cholesky upper": lambda a: linalg.cholesky(a, upper=True),
    "cholesky_ex": lambda a: linalg.cholesky_ex(a)[0],
    "cholesky_solve": lambda a: torch.cholesky_solve(a + 1, linalg.cholesky(a)),
    "cholesky_inverse": lambda a: torch.cholesky_inverse(linalg.cholesky(a)),
    "eigvalsh": linalg.eigvalsh,
    "eigh": lambda a: (lambda w, v: v @ torch.diag_embed(w.sqrt()).to(v.dtype) @ v.mH)(*linalg.eigh(a)),
    "ldl_factor": lambda a: linalg.ldl_factor(a.detach())[0],
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", GENERAL)
def test_general_matrices(name):
    check_grads(GENERAL[name], randn(4, 4, **F64))
    check_grads(GENERAL[name], randn(4, 4))
    check_grads(GENERAL[name], randn(3, 4, 4, **F64))


@pytest.mark.parametrize("name", ["det", "inv", "svdvals", "qr", "solve", "matrix_exp", "matmul", "eigvals"])
def test_complex_matrices_and_layouts(name):
    check_grads(GENERAL[name], randn(4, 4, dtype=torch.complex128))
    check_grads(lambda a: GENERAL[name](a.mT), randn(3, 4, 4, **F64))
    check_grads(lambda a: GENERAL[name](a[:, ::2, 1:5]), randn(2, 8, 6, **F64))
    check_grads(lambda a: GENERAL[name](a.conj()), randn(4, 4, dtype=torch.complex64))
    check(GENERAL[name], torch.empty(0, 4, 4))


@pytest.mark.parametrize("name", SYMMETRIC)
def test_symmetric_matrices(name):
    check_grads(SYMMETRIC[name], spd(4))
    check_grads(SYMMETRIC[name], spd(4, 3))
    check_grads(SYMMETRIC[name], spd(4, dtype=torch.complex128))


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 5, 3)])
def test_rectangular_matrices(shape):
    a = randn(*shape, **F64)
    check_grads(lambda a: linalg.svdvals(a), a)
    check_grads(lambda a: linalg.pinv(a), a)
    check_grads(lambda a: linalg.qr(a, mode="reduced"), a)
    check(lambda a: linalg.matrix_rank(a), a.detach())
    check(lambda a: linalg.svd(a, full_matrices=True), a.detach())
    check(lambda a: torch.geqrf(a), a.detach())


def test_least_squares():
    # LAPACK's driver does not repeat its last bits, on the CPU either.
    for a in (randn(4, 4, **F64), randn(2, 5, 3, **F64), randn(3, 5, **F64)):
        check_grads(lambda a: linalg.lstsq(a, a[..., :2])[0], a, rtol=1e-7, atol=1e-9)
    check(lambda a: list(linalg.lstsq(a, a[..., :1])), torch.randn(5, 3, **F64), rtol=1e-9, atol=1e-9)
    check(lambda a: list(linalg.lstsq(a, a[..., :1], driver="gelsd")), torch.randn(5, 3, **F64), rtol=1e-9, atol=1e-9)


PRODUCTS = {
    "mm": lambda a, b: a @ b.t(),
    "addmm": lambda a, b: torch.addmm(b[:, :3].t(), a, b.t()[:, :4], beta=0.5, alpha=2) if a.size(0) == 3 else a,
    "bmm": lambda a, b: torch.bmm(a[None].expand(2, -1, -1), b.t()[None].expand(2, -1, -1)),
    "baddbmm": lambda a, b: torch.baddbmm(a.new_ones(1), a[None], b.t()[None], beta=2),
    "mv": lambda a, b: a @ b[0],
    "dot": lambda a, b: a[0] @ b[0],
    "outer": lambda a, b: torch.outer(a[0], b[0]),
    "addr": lambda a, b: torch.addr(a[:, :1] * 0, a[:, 0], b[:, 0]),
    "addmv": lambda a, b: torch.addmv(a[:, 0], a, b[0]),
    "kron": lambda a, b: torch.kron(a, b),
    "einsum": lambda a, b: torch.einsum("ik,jk,j->i", a, b, b[:, 0]),
    "tensordot": lambda a, b: torch.tensordot(a, b, ([1], [1])),
    "inner": torch.inner,
    "chain_matmul": lambda a, b: linalg.multi_dot([a, b.t(), b]),
    "vecdot": lambda a, b: linalg.vecdot(a, b[: a.size(0)]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, dtype):
    check_grads(PRODUCTS[name], randn(3, 5, dtype=dtype), randn(4, 5, dtype=dtype))
    check_grads(lambda a, b: PRODUCTS[name](a.t(), b.t()), randn(5, 3, dtype=dtype), randn(5, 4, dtype=dtype))


def test_integer_products():
    a, b = torch.randint(-9, 9, (3, 5)), torch.randint(-9, 9, (5, 4))
    for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8):
        check(lambda a, b: (a @ b, a[0] @ b[:, 0], torch.bmm(a[None], b[None])), a.abs().to(dtype), b.abs().to(dtype))


def test_products_into_out():
    def run(a, b, out):
        torch.mm(a, b, out=out[1:4, ::2])
        torch.bmm(a[None], b[None], out=(third := a.new_empty(0)))
        return out, third

    check(run, torch.randn(3, 5), torch.randn(5, 4), torch.full((5, 8), 7.0))


def test_matmul_precision_setting_is_kept():
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(precision)
            check(lambda a: a @ a, torch.randn(16, 16))
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.smoke
def test_errors():
    for device in ("cpu", "accel"):
        eye, zero = torch.eye(3, device=device), torch.zeros(3, 3, device=device)
        with pytest.raises(linalg.LinAlgError, match="singular"):
            linalg.inv(zero)
        with pytest.raises(linalg.LinAlgError, match="not positive-definite"):
            linalg.cholesky(-eye)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            eye @ torch.ones(4, 2, device=device)
        with pytest.raises(RuntimeError, match="square"):
            linalg.inv(torch.ones(2, 3, device=device))
        with pytest.raises(RuntimeError, match="same dtype|dtype"):
            eye @ eye.double()
        factor, info = linalg.cholesky_ex(-eye)
        assert info.item() == 1 and info.device.type == device and factor.device.type == device


# --------------------------------------------------------------------------------------------------------------------- fft
REAL = {
    "fft": lambda x: fft.fft(x),
    "fft cut": lambda x: fft.fft(x, 5),
    "fft padded": lambda x: fft.fft(x, 12, dim=0),
    "fft ortho": lambda x: fft.fft(x, norm="ortho"),
    "rfft": lambda x: fft.rfft(x, norm="forward"),
    "rfft2": fft.rfft2,
    "rfftn": lambda x: fft.rfftn(x, dim=(0, 1)),
    "ihfft": fft.ihfft,
    "fft2": fft.fft2,
    "fftn": fft.fftn,
    "there and back": lambda x: fft.irfft(fft.rfft(x), n=x.size(-1)),
    "fftshift": lambda x: fft.ifftshift(fft.fftshift(x * 2), dim=0),
    "stft": lambda x: torch.stft(
        x, 4, 2, window=torch.hann_window(4, device=x.device, dtype=x.dtype), return_complex=True
    ),
    "fft of a view": lambda x: fft.fft(x.t()[1::2]),
}
COMPLEX = {
    "fft": fft.fft,
    "ifft": lambda x: fft.ifft(x, norm="ortho"),
    "irfft": lambda x: fft.irfft(x, n=9),
    "hfft": fft.hfft,
    "ifftn": fft.ifftn,
    "irfft2": fft.irfft2,
    "fft of a conjugate": lambda x: fft.fft(x.conj()),
    "fft of the imaginary part": lambda x: fft.fft(x.conj().imag),
    "istft": lambda x: torch.istft(x[:3], 4, 2, window=torch.ones(4, device=x.device), center=True),
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", REAL)
def test_transforms_of_real_signals(name):
    check_grads(REAL[name], randn(6, 8))
    check_grads(REAL[name], randn(6, 8, **F64))


@pytest.mark.parametrize("name", COMPLEX)
def test_transforms_of_complex_signals(name):
    check_grads(COMPLEX[name], randn(6, 8, dtype=torch.complex64))


def test_transform_helpers():
    on_accel(fft.fftfreq(5, device="accel"))
    same(fft.fftfreq(5, 0.1, device="accel"), fft.fftfreq(5, 0.1))
    same(fft.rfftfreq(5, device="accel"), fft.rfftfreq(5))
    out = torch.empty(0, dtype=torch.complex64, device="accel")
    x = torch.randn(8)
    assert fft.fft(x.to("accel"), out=out) is out
    same(out, fft.fft(x))
    with pytest.raises(RuntimeError, match="Invalid number of data points"):
        fft.fft(x.to("accel"), 0)


def test_complex_numbers():
    z = randn(3, 4, dtype=torch.complex64)
    check_grads(
        lambda z: (z.abs(), z.angle(), z.real * 2, z.imag * 3, z.conj() * z, z.mH @ z, torch.view_as_real(z) * 2), z
    )
    check_grads(lambda z: torch.view_as_complex(torch.view_as_real(z).flip(0)), z)
    check_grads(lambda z: (z.conj().resolve_conj(), z.conj() + 1, (z.conj().imag + 1), z.sgn(), z.exp()), z)
    check_grads(lambda a, b: torch.complex(a, b), randn(3), randn(3))
    check_grads(lambda a, b: torch.polar(a, b), randn(3), randn(3))
    conjugate = z.detach().to("accel").conj()
    assert conjugate.is_conj() and conjugate.resolve_conj().is_conj() is False
    same(conjugate.clone(), z.detach().conj())
    target = torch.zeros(3, 4, dtype=torch.complex64, device="accel")
    target.conj().copy_(z.detach())
    same(target, z.detach().conj().resolve_conj())
