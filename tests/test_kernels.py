"""Facts about the tangent rules: the plain forms are torch.func's derivatives, the Triton kernels are the plain forms.

The kernels run on CUDA where there is one, and in Triton's interpreter in a second pytest that this file starts.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.func import jvp, vmap
from torch.nn import functional as F

from zofc.optim import kernels
from zofc.optim.kernels import gelu, layer_norm

DEVICE = "cpu" if kernels.INTERPRETED or not torch.cuda.is_available() else "cuda"
HAS_TRITON = importlib.util.find_spec("triton") is not None
PRESENT = [(True, True, True), (True, True, False), (True, False, True), (False, True, True)]
PRESENT += [(True, False, False), (False, True, False), (False, False, True)]  # which of dq, dk, dv are not None
LEADS: list[tuple[int, ...]] = [(), (2,), (2, 3)]
TYPES = [torch.float32, torch.float16, torch.bfloat16]
QUERIES = 3

kernel = pytest.mark.skipif(
    not HAS_TRITON or (DEVICE == "cpu" and not kernels.INTERPRETED),
    reason="needs Triton, and CUDA or TRITON_INTERPRET=1",
)


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE, dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return (scale * q @ k.mT).softmax(-1) @ v


def exact(tensor: Tensor) -> Tensor:
    """On the CPU, where float64 products are not suspected of being non-deterministic (`_poison`)."""
    return tensor.double().cpu()


def close(actual: Tensor, right: Tensor) -> bool:
    """Every element, in units of the largest; a NaN anywhere fails.

    16-bit types: three roundings of at most half an epsilon each, of p, of p∘ds and of the result. (The interpreter
    cuts bf16 off instead of rounding it, which still fits: there is one cut where bf16 is interpreted.)
    """
    tolerance = 1e-5 if actual.dtype == torch.float32 else 1.5 * torch.finfo(actual.dtype).eps
    error = (exact(actual) - right).abs().max()
    return actual.shape == right.shape and bool(error <= tolerance * right.abs().max())


@pytest.fixture
def _poison() -> Iterator[None]:
    """Memory that was allocated and never written reads as NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(3).isnan().all() and torch.ones(()).new_empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("present", PRESENT)
def test_the_plain_attention_rule_is_the_jvp_of_attention(
    present: tuple[bool, bool, bool], n: int, lead: tuple[int, ...]
) -> None:
    shapes = [(*lead, 2, n, 4), (*lead, 2, 5, 4), (*lead, 2, 5, 4)]
    primals = tuple(drawn(*shape, seed=i) for i, shape in enumerate(shapes))
    drawn_tangents = (drawn(QUERIES, *shape, seed=3 + i) for i, shape in enumerate(shapes))
    given = [tangent if there else None for tangent, there in zip(drawn_tangents, present, strict=True)]
    zeros = (torch.zeros(QUERIES, *shape, dtype=torch.float64, device=DEVICE) for shape in shapes)
    tangents = [zero if tangent is None else tangent for tangent, zero in zip(given, zeros, strict=True)]
    out, dout = kernels.attention(*primals, *given, 0.7, fused=False)
    moved = vmap(lambda *t: jvp(lambda q, k, v: attention(q, k, v, 0.7), primals, t)[1])(*tangents)
    torch.testing.assert_close(out, attention(*primals, 0.7), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(dout, moved, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("weighted", [True, False])
def test_the_plain_layer_norm_rule_is_the_jvp_of_layer_norm(weighted: bool, lead: tuple[int, ...]) -> None:
    x, dx = drawn(*lead, 7, seed=0), drawn(QUERIES, *lead, 7, seed=1)
    weight, bias = (drawn(7, seed=2), drawn(7, seed=3)) if weighted else (None, None)
    moved = vmap(lambda t: jvp(lambda x: F.layer_norm(x, (7,), weight, bias, 1e-3), (x,), (t,))[1])(dx)
    h, dh = layer_norm(x, dx, weight, bias, 1e-3, fused=False)
    assert torch.equal(h, F.layer_norm(x, (7,), weight, bias, 1e-3))
    torch.testing.assert_close(dh, moved, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("lead", LEADS)
def test_the_plain_gelu_rule_is_the_jvp_of_the_exact_gelu(lead: tuple[int, ...]) -> None:
    x, dx = 3 * drawn(*lead, 7, seed=0), drawn(QUERIES, *lead, 7, seed=1)
    moved = vmap(lambda t: jvp(F.gelu, (x,), (t,))[1])(dx)
    right = (F.gelu(x), moved)
    torch.testing.assert_close(gelu(x, dx, fused=False), right, rtol=1e-10, atol=1e-10)
    same = gelu(x, dx, fused=False, in_place=True)
    assert same[0] is x and same[1] is dx
    torch.testing.assert_close(same, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", TYPES[1:])
def test_the_plain_forms_keep_a_16_bit_type_and_its_accuracy(dtype: torch.dtype) -> None:
    x, dx, weight = (drawn(*shape, seed=i, dtype=dtype) for i, shape in enumerate([(4, 96), (QUERIES, 4, 96), (96,)]))
    found = (*layer_norm(x, dx, weight, None, 1e-6, fused=False), *gelu(x, dx, fused=False))
    right = (*layer_norm(exact(x), exact(dx), exact(weight), None, 1e-6), *gelu(exact(x), exact(dx)))
    assert all(tensor.dtype == dtype for tensor in found)
    assert all(map(close, found, right))


def projected(
    *lead: int, tokens: int, heads: int, width: int, spare: int, seed: int, dtype: torch.dtype
) -> list[Tensor]:
    """Views q, k and v (*lead, heads, tokens, width) of one qkv projection, in memory that is NaN around them."""
    whole = torch.full((*lead, tokens + spare, 3, heads, width + spare), math.nan, dtype=dtype, device=DEVICE)
    inner = whole[..., :tokens, :, :, :width]
    inner.copy_(drawn(*inner.shape, seed=seed))
    return [part.transpose(-3, -2) for part in inner.unbind(-3)]


@kernel
@pytest.mark.usefixtures("_poison")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("n", "m", "width", "spare", "lead", "present"),
    [
        *((17, 17, 24, 8, (), present) for present in PRESENT),
        (17, 17, 32, 0, (2, 2), PRESENT[0]),
        (1, 17, 32, 8, (2,), PRESENT[0]),
        (1, 70, 80, 0, (1,), PRESENT[0]),
        (197, 197, 64, 0, (1,), PRESENT[0]),
    ],
)
def test_the_attention_kernel_is_the_plain_rule_on_views_of_a_projection(
    n: int, m: int, width: int, spare: int, lead: tuple[int, ...], present: tuple[bool, ...], dtype: torch.dtype
) -> None:
    if kernels.INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bit patterns of bf16")
    heads, queries = (1, 2) if m > 100 else (2, QUERIES)
    q, k, v = projected(*lead, tokens=m, heads=heads, width=width, spare=spare, seed=0, dtype=dtype)
    moved = projected(queries, *lead, tokens=m, heads=heads, width=width, spare=spare, seed=1, dtype=dtype)
    q, moved[0] = q[..., :n, :], moved[0][..., :n, :]
    tangents = [tangent if there else None for tangent, there in zip(moved, present, strict=True)]
    out, dout = kernels.attention(q, k, v, *tangents, width**-0.5, fused=True)
    given = (None if tensor is None else exact(tensor) for tensor in (q, k, v, *tangents))
    right_out, right_dout = kernels.attention(*given, width**-0.5)
    assert out.dtype == dout.dtype == dtype
    assert close(out, right_out) and close(dout, right_dout)
    assert all(tensor.transpose(-3, -2).is_contiguous() for tensor in (out, dout))  # joining the heads is a view


@kernel
@pytest.mark.usefixtures("_poison")
def test_the_attention_kernel_takes_logits_far_apart_and_a_last_axis_with_gaps() -> None:
    shapes = [(1, 40, 16), (1, 40, 16), (1, 40, 16)]
    q, k, v = (drawn(*shape, 2, seed=i, dtype=torch.float32)[..., 0] for i, shape in enumerate(shapes))
    dq = drawn(QUERIES, *shapes[0], 2, seed=3, dtype=torch.float32)[..., 0]
    assert (30 * exact(q) @ exact(k).mT).max() > 200  # far beyond what exp takes in fp32
    found = kernels.attention(q, k, v, dq, None, None, 30.0, fused=True)
    rights = kernels.attention(*(exact(tensor) for tensor in (q, k, v, dq)), None, None, 30.0)
    for actual, right in zip(found, rights, strict=True):
        torch.testing.assert_close(exact(actual), right, rtol=1e-3, atol=1e-4 * float(right.abs().max()))


@kernel
@pytest.mark.usefixtures("_poison")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("lead", "width"), [((), 768), ((2, 5), 33), ((3,), 1)])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_layer_norm_kernel_is_the_plain_rule(
    weighted: bool, lead: tuple[int, ...], width: int, dtype: torch.dtype
) -> None:
    x, dx = 5 + drawn(*lead, width, seed=0).float(), drawn(QUERIES, *lead, width, seed=1, dtype=dtype)
    affine = [drawn(width, seed=2 + i, dtype=dtype) if weighted else None for i in range(2)]
    h, dh = layer_norm(x, dx, *affine, 1e-6, fused=True)  # an fp32 residual stream with tangents of any type
    right = layer_norm(exact(x), exact(dx), *(None if tensor is None else exact(tensor) for tensor in affine), 1e-6)
    assert h.dtype == torch.float32 and dh.dtype == dtype
    assert close(h, right[0]) and close(dh, right[1])


@kernel
@pytest.mark.usefixtures("_poison")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(7,), (2, 5, 103), (2, 1024)])
def test_the_gelu_kernel_is_the_plain_rule(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, dx = 3 * drawn(*shape, seed=0, dtype=dtype), drawn(QUERIES, *shape[::-1], seed=1, dtype=dtype)
    dx = dx.permute(0, *range(len(shape), 0, -1))  # not contiguous
    found = gelu(x, dx, fused=True)
    assert all(tensor.dtype == dtype for tensor in found)
    assert all(map(close, found, gelu(exact(x), exact(dx))))
    if not dx.is_contiguous():
        with pytest.raises(ValueError, match="contiguous for a GELU in place"):
            gelu(x, dx, fused=True, in_place=True)
    together = x.clone(), dx.contiguous()
    same = gelu(*together, fused=True, in_place=True)
    assert same[0] is together[0] and same[1] is together[1]
    assert all(map(torch.equal, same, found))


@kernel
def test_float64_wide_rows_and_gradients_take_the_plain_form() -> None:
    x, dx = drawn(2, 8, seed=0), drawn(QUERIES, 2, 8, seed=1)
    assert all(map(torch.equal, gelu(x, dx), gelu(x, dx, fused=False)))
    for refused in (x, x.float().requires_grad_()):
        with pytest.raises(ValueError, match="ask for no gradient"):
            gelu(refused, dx.float(), fused=True)
    assert all(tensor.requires_grad for tensor in gelu(x.float().requires_grad_(), dx.float()))
    row = drawn(kernels.WIDEST_ROW + 1, seed=2, dtype=torch.float32)
    with pytest.raises(ValueError, match="rows up to 4096"):
        layer_norm(row, row[None], None, None, 1e-6, fused=True)


def test_a_view_of_a_projection_reaches_the_kernel_uncopied() -> None:
    q, *_ = projected(2, tokens=5, heads=2, width=8, spare=0, seed=0, dtype=torch.float32)
    seen = kernels._addressable(q, 2, 2, 5, 8)
    assert not q.is_contiguous() and seen.data_ptr() == q.data_ptr() and seen.stride() == q.stride()


def test_a_tangent_that_does_not_fit_is_refused_by_its_shape() -> None:
    x = torch.zeros(2, 3, 4)
    with pytest.raises(ValueError, match=r"a tangent of \(2, 3, 4\) has shape \(Q, ...\), not \(5, 3, 4\)"):
        gelu(x, torch.zeros(5, 3, 4))
    with pytest.raises(ValueError, match="not \\(1, 2, 3, 5\\)"):
        kernels.attention(x, x, x, None, torch.zeros(1, 2, 3, 5), None, 1.0)
    with pytest.raises(ValueError, match="at least one"):
        kernels.attention(x, x, x, None, None, None, 1.0)


def test_without_triton_the_module_imports_and_serves_the_plain_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)  # an import of it fails now
    spec = importlib.util.spec_from_file_location("kernels_without_triton", kernels.__file__)
    assert spec is not None and spec.loader is not None
    bare = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, bare)
    spec.loader.exec_module(bare)
    x, dx = drawn(2, 8, seed=0, dtype=torch.float32), drawn(QUERIES, 2, 8, seed=1, dtype=torch.float32)
    assert bare.triton is None
    assert all(map(torch.equal, bare.gelu(x, dx), gelu(x, dx, fused=False)))
    with pytest.raises(ValueError, match="needs Triton"):
        bare.gelu(x, dx, fused=True)


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@pytest.mark.skipif(kernels.INTERPRETED, reason="this is the interpreted run")
def test_the_kernels_hold_in_tritons_interpreter() -> None:
    """Triton decides when it is imported whether it interprets, hence a process of its own."""
    here = Path(__file__)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(here), "-k", "kernel_ or wide_rows"],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=here.parent.parent,
        capture_output=True,
        text=True,
    )
    if "only 0-dimensional arrays can be converted" in done.stdout:
        pytest.skip("the interpreter of this Triton does not work with this NumPy")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d\d passed, 11 skipped", done.stdout), done.stdout  # skipped: attention in bf16
