"""Forward derivatives of a ViT's three non-linear operators, for Q tangents that share one primal.

Attention, with P = softmax(s q kᵀ) and dS = s (dq kᵀ + q dkᵀ): dO = (P∘dS) v − rowsum(P∘dS)∘O + P dv. Layer norm, with
x̂ = (x − μ) / σ: dh = w∘(dx − mean dx − x̂ mean(x̂∘dx)) / σ. GELU: (Φ(x) + x φ(x)) dx. A tangent carries one leading query
axis. Each function gives the value and its tangents. It has a plain form, for any device and type, and a Triton kernel
that reads the primal once per query (attention) or once in all (the others) and keeps its sums in fp32.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

try:
    import triton
    import triton.language as tl
except ImportError:  # not every platform has it; the plain forms need nothing
    triton = None

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton reads it when a kernel is defined, so do we
FUSED_TYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDEST_ROW = 4096  # a layer norm's row is one block of registers


class Tiles(NamedTuple):
    """How the attention kernel cuts its work; the numbers to tune. Few queries (a class token) use fewer rows."""

    rows: int  # queries per program, 64 being what one warp group multiplies at once
    keys: int  # keys per step of the loop
    warps: int
    stages: int  # steps whose loads are in flight


# 197 keys fill blocks of 32 better than blocks of 64 (224 slots against 256), and three programs fit a Hopper
# multiprocessor instead of two (147 registers a thread against 226, at heads 64 wide).
TILES = Tiles(rows=64, keys=32, warps=4, stages=3)  # 16-bit types; of seven, the fastest on an H200
TILES_FP32 = Tiles(rows=16, keys=16, warps=4, stages=2)  # each product takes three passes and twice the registers
NORM_PER_WARP = 256  # elements of a row per warp, 8 a thread: one 16-byte load of a 16-bit type
GELU_BLOCK, GELU_WARPS = 1024, 4
GELU_IN_PLACE: Callable[[Tensor], Tensor] = torch._C._nn.gelu_  # type: ignore[attr-defined]  # no other name
_PLAIN = ContextVar("plain", default=False)


@contextmanager
def plain() -> Iterator[None]:
    """Inside, no fused kernel is used, only operators of torch, which can be counted."""
    before = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(before)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    scale: float,
    *,
    fused: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """softmax(scale q kᵀ) v and its Q tangents, for q (*lead, heads, n, d) and k, v (*lead, heads, m, d).

    dq, dk, dv (Q, *lead, heads, n or m, d), None being zero, not all of them. `fused`: None takes the kernel where it
    can run, False never, True insists on it.
    """
    tangents = [tangent for tangent in (dq, dk, dv) if tangent is not None]
    if not tangents:
        raise ValueError("attention needs at least one of dq, dk and dv")
    for primal, tangent in ((q, dq), (k, dk), (v, dv)):
        if tangent is not None:
            _check(primal, tangent)
    given = (q, k, v, *tangents)
    alike = len({tensor.dtype for tensor in given}) == 1 and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
    if _chosen(fused, alike, *given):
        return _attention_fused(q, k, v, dq, dk, dv, scale)
    weights = (scale * (q @ k.mT)).softmax(-1)  # (*lead, heads, n, m)

    def along(dq: Tensor | None, dk: Tensor | None, dv: Tensor | None) -> Tensor:
        moved = [] if dq is None else [dq @ k.mT]
        if dk is not None:
            moved.append(q @ dk.mT)
        shares = [] if dv is None else [weights @ dv]
        if moved:
            ds = scale * sum(moved[1:], moved[0])
            moved.clear()
            shares.append((weights * (ds - (weights * ds).sum(-1, keepdim=True))) @ v)
        return sum(shares[1:], shares[0])

    if torch.compiler.is_exporting():  # any number of tangents
        return weights @ v, along(dq, dk, dv)
    # One tangent after the other: half the time on a CPU, whose cache holds more of one, and less memory.
    each = zip(*([None] * len(tangents[0]) if t is None else t for t in (dq, dk, dv)), strict=True)
    return weights @ v, torch.stack([along(*one) for one in each])


def layer_norm(
    x: Tensor, dx: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, fused: bool | None = None
) -> tuple[Tensor, Tensor]:
    """LN(x) over the last axis of x (*lead, D), of x's type, and its tangents (Q, *lead, D), of dx's type."""
    _check(x, dx)
    given = [tensor for tensor in (x, dx, weight, bias) if tensor is not None]
    width = x.shape[-1:]
    fits = width[0] <= WIDEST_ROW and all(tensor.shape == width for tensor in given[2:])
    if _chosen(fused, fits, *given):
        return _layer_norm_fused(x, dx, weight, bias, eps)
    wide = torch.promote_types(torch.float32, torch.promote_types(x.dtype, dx.dtype))
    centered = x.to(wide) - x.to(wide).mean(-1, keepdim=True)
    rate = (centered.square().mean(-1, keepdim=True) + eps).rsqrt()
    unit, moved = centered * rate, dx.to(wide)
    dh = rate * (moved - moved.mean(-1, keepdim=True) - unit * (unit * moved).mean(-1, keepdim=True))
    return F.layer_norm(x, width, weight, bias, eps), (dh if weight is None else dh * weight).to(dx.dtype)


def gelu(x: Tensor, dx: Tensor, *, fused: bool | None = None, in_place: bool = False) -> tuple[Tensor, Tensor]:
    """The exact GELU x Φ(x) of x (*lead, D) and its tangents dx · gelu'(x), (Q, *lead, D) of dx's type; with `in_place`
    in x and dx themselves."""
    _check(x, dx)
    if _chosen(fused, not in_place or (x.is_contiguous() and dx.is_contiguous()), x, dx):
        return _gelu_fused(x, dx, in_place)
    wide = x.to(torch.promote_types(torch.float32, x.dtype))
    slope = torch.special.ndtr(wide) + wide * (-0.5 * wide.square()).exp() / math.sqrt(2 * math.pi)
    if in_place:
        dx.mul_(slope.to(dx.dtype))
        return GELU_IN_PLACE(x), dx
    return F.gelu(x), dx * slope.to(dx.dtype)


def _check(primal: Tensor, tangent: Tensor) -> None:
    """Refuse tangents that do not match the primal, from whose shape the kernels compute addresses."""
    if tangent.shape[1:] != primal.shape:
        raise ValueError(f"a tangent of {tuple(primal.shape)} has shape (Q, ...), not {tuple(tangent.shape)}")


def _fused(*tensors: Tensor) -> bool:
    """Whether a kernel can take these tensors. It records nothing for autograd, so none may require gradients."""
    return (
        triton is not None
        and not _PLAIN.get()
        and all(tensor.dtype in FUSED_TYPES for tensor in tensors)
        and (INTERPRETED or all(tensor.is_cuda for tensor in tensors))
        and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
    )


def _chosen(fused: bool | None, suited: bool, *tensors: Tensor) -> bool:
    possible = fused is not False and suited and _fused(*tensors)
    if fused and not possible:
        raise ValueError(
            "fused=True needs Triton and CUDA tensors in bf16, fp16 or fp32 that ask for no gradient (of one type and "
            f"batch shape for attention, rows up to {WIDEST_ROW} for layer norm, contiguous for a GELU in place); else "
            "the plain form serves"
        )
    return possible


def _attention_fused(
    q: Tensor, k: Tensor, v: Tensor, dq: Tensor | None, dk: Tensor | None, dv: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    *lead, heads, n, width = q.shape
    m, batch = k.shape[-2], math.prod(lead)
    queries = next(len(tangent) for tangent in (dq, dk, dv) if tangent is not None)
    # Born as (…, n, heads, d): joining the heads of what is returned is then a view.
    out = q.new_empty(batch, n, heads, width).transpose(1, 2)
    dout = q.new_empty(queries, batch, n, heads, width).transpose(2, 3)
    q = _addressable(q, batch, heads, n, width)
    k, v = (_addressable(tensor, batch, heads, m, width) for tensor in (k, v))
    dq = None if dq is None else _addressable(dq, queries, batch, heads, n, width)
    dk, dv = (None if t is None else _addressable(t, queries, batch, heads, m, width) for t in (dk, dv))

    padded = max(16, triton.next_power_of_2(width))  # 16: the least that a tensor core contracts
    tiles = TILES_FP32 if q.dtype == torch.float32 else TILES
    rows = min(tiles.rows, max(16, triton.next_power_of_2(n)))
    tensors = (q, k, v, dq, dk, dv, out, dout)
    strides = (None if tensor is None else tensor.stride()[:-1] for tensor in tensors)
    present = {"HAS_DQ": dq is not None, "HAS_DK": dk is not None, "HAS_DV": dv is not None}
    sizes = {"WIDTH": width, "PADDED": padded, "ROWS": rows, "KEYS": tiles.keys}
    launch = _attention_kernel[(triton.cdiv(n, rows) * queries * batch * heads,)]
    with _device_of(q):
        launch(
            *(*tensors, *strides, queries, heads, n, m, scale),
            **(present | sizes),
            num_warps=tiles.warps,
            num_stages=tiles.stages,
            enable_fp_fusion=True,
        )
    return out.reshape(*lead, heads, n, width), dout.reshape(queries, *lead, heads, n, width)


def _addressable(tensor: Tensor, *shape: int) -> Tensor:
    """With one batch axis and neighbours along the last axis; a view of a qkv projection stays a view."""
    tensor = tensor.reshape(shape)
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _layer_norm_fused(
    x: Tensor, dx: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    x, dx, width = x.contiguous(), dx.contiguous(), x.shape[-1]
    h, dh = torch.empty_like(x), torch.empty_like(dx)  # (*lead, D), (Q, *lead, D)
    padded = triton.next_power_of_2(width)
    weight, bias = (None if tensor is None else tensor.contiguous() for tensor in (weight, bias))
    launch = _layer_norm_kernel[(x.numel() // max(width, 1),)]
    with _device_of(x):
        launch(
            *(x, dx, weight, bias, h, dh, len(dx), x.numel(), eps),
            **{"HAS_WEIGHT": weight is not None, "HAS_BIAS": bias is not None, "WIDTH": width, "PADDED": padded},
            num_warps=min(16, max(1, padded // NORM_PER_WARP)),
            enable_fp_fusion=True,
        )
    return h, dh


def _gelu_fused(x: Tensor, dx: Tensor, in_place: bool) -> tuple[Tensor, Tensor]:
    x, dx = x.contiguous(), dx.contiguous()
    y, dy = (x, dx) if in_place else (torch.empty_like(x), torch.empty_like(dx))
    launch = _gelu_kernel[(triton.cdiv(x.numel(), GELU_BLOCK),)]
    with _device_of(x):
        launch(x, dx, y, dy, len(dx), x.numel(), BLOCK=GELU_BLOCK, num_warps=GELU_WARPS, enable_fp_fusion=True)
    return y, dy


def _device_of(tensor: Tensor) -> AbstractContextManager[None]:
    """Triton launches on the current device, which need not be the tensor's."""
    guard: AbstractContextManager[None] = torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]
    return guard


def _jit(kernel: Callable[..., Any]) -> Any:
    return kernel if triton is None else triton.jit(kernel)


# Program numbers become int64 before they multiply a stride: Q tangents of a large batch pass 2³¹ elements.


@_jit
def _attention_kernel(  # type: ignore[no-untyped-def]
    q, k, v, dq, dk, dv, out, dout,
    q_strides, k_strides, v_strides, dq_strides, dk_strides, dv_strides, out_strides, dout_strides,
    queries, heads, n, m, scale,
    HAS_DQ: tl.constexpr, HAS_DK: tl.constexpr, HAS_DV: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One tangent of one block of rows of one head, by an online softmax over blocks of keys.

    Neighbouring programs share a head, so that its keys and values come from the cache. fp32 is multiplied as three
    TF32 products ("tf32x3", all but the last bits of fp32): with "ieee", outside the tensor cores, Triton 3.9 spills
    nearly all registers or aborts while compiling. 16-bit products are exact in either case.
    """
    blocks = tl.cdiv(n, ROWS)
    rows = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    tangent = (tl.program_id(0) // blocks % queries).to(tl.int64)
    head = (tl.program_id(0) // blocks // queries % heads).to(tl.int64)
    batch = (tl.program_id(0) // blocks // queries // heads).to(tl.int64)
    dims = tl.arange(0, PADDED)

    q_tile = _tile(q + batch * q_strides[0] + head * q_strides[1], rows, q_strides[2], dims, n, WIDTH)
    k += batch * k_strides[0] + head * k_strides[1]
    v += batch * v_strides[0] + head * v_strides[1]
    if HAS_DQ:
        dq += tangent * dq_strides[0] + batch * dq_strides[1] + head * dq_strides[2]
        dq_tile = _tile(dq, rows, dq_strides[3], dims, n, WIDTH)
    if HAS_DK:
        dk += tangent * dk_strides[0] + batch * dk_strides[1] + head * dk_strides[2]
    if HAS_DV:
        dv += tangent * dv_strides[0] + batch * dv_strides[1] + head * dv_strides[2]

    top = tl.full((ROWS,), float("-inf"), tl.float32)  # the running maximum of s, in powers of two
    total = tl.zeros((ROWS,), tl.float32)  # Σ p
    drift = tl.zeros((ROWS,), tl.float32)  # Σ p ds
    mixed = tl.zeros((ROWS, PADDED), tl.float32)  # Σ p v
    moved = tl.zeros((ROWS, PADDED), tl.float32)  # Σ p ds v + p dv
    for start in range(0, m, KEYS):
        keys = start + tl.arange(0, KEYS)
        k_tile = tl.trans(_tile(k, keys, k_strides[2], dims, m, WIDTH))
        v_tile = _tile(v, keys, v_strides[2], dims, m, WIDTH)
        s = tl.dot(q_tile, k_tile, input_precision="tf32x3") * (scale * 1.4426950408889634)  # exp(x) = 2^(x log2 e)
        s = tl.where(keys[None, :] < m, s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        shrink = tl.exp2(top - higher)
        p = tl.exp2(s - higher[:, None])
        top = higher
        total = total * shrink + tl.sum(p, 1)
        weights = p.to(v_tile.dtype)
        mixed = tl.dot(weights, v_tile, mixed * shrink[:, None], input_precision="tf32x3")
        moved = moved * shrink[:, None]
        if HAS_DQ or HAS_DK:
            ds = tl.zeros((ROWS, KEYS), tl.float32)
            if HAS_DQ:
                ds = tl.dot(dq_tile, k_tile, ds, input_precision="tf32x3")
            if HAS_DK:
                dk_tile = tl.trans(_tile(dk, keys, dk_strides[3], dims, m, WIDTH))
                ds = tl.dot(q_tile, dk_tile, ds, input_precision="tf32x3")
            # The sum is over the rounded products: what all keys share in ds then cancels as it does in exact numbers.
            pds = (p * ds * scale).to(v_tile.dtype)
            drift = drift * shrink + tl.sum(pds.to(tl.float32), 1)
            moved = tl.dot(pds, v_tile, moved, input_precision="tf32x3")
        if HAS_DV:
            dv_tile = _tile(dv, keys, dv_strides[3], dims, m, WIDTH)
            moved = tl.dot(weights, dv_tile, moved, input_precision="tf32x3")

    mixed = mixed / total[:, None]
    moved = (moved - drift[:, None] * mixed) / total[:, None]
    inside = (rows[:, None] < n) & (dims[None, :] < WIDTH)
    dout += tangent * dout_strides[0] + batch * dout_strides[1] + head * dout_strides[2]
    tl.store(dout + rows[:, None] * dout_strides[3] + dims[None, :], moved.to(dout.dtype.element_ty), mask=inside)
    if tangent == 0:  # the primal is the same for all of them
        out += batch * out_strides[0] + head * out_strides[1]
        tl.store(out + rows[:, None] * out_strides[2] + dims[None, :], mixed.to(out.dtype.element_ty), mask=inside)


@_jit
def _tile(base, rows, stride, dims, count, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows of one head, (rows, padded width), zero outside."""
    inside = (rows[:, None] < count) & (dims[None, :] < WIDTH)
    return tl.load(base + rows[:, None] * stride + dims[None, :], mask=inside, other=0.0)


@_jit
def _layer_norm_kernel(  # type: ignore[no-untyped-def]
    x, dx, weight, bias, h, dh, queries, size, eps,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """The value and all tangents of one row, whose statistics are computed once."""
    dims = tl.arange(0, PADDED)
    inside = dims < WIDTH
    row = tl.program_id(0).to(tl.int64) * WIDTH
    values = tl.load(x + row + dims, mask=inside, other=0.0).to(tl.float32)
    centered = tl.where(inside, values - tl.sum(values, 0) / WIDTH, 0.0)
    rate = 1 / tl.sqrt(tl.sum(centered * centered, 0) / WIDTH + eps)
    unit = centered * rate
    gain = rate
    scaled = unit
    if HAS_WEIGHT:
        factor = tl.load(weight + dims, mask=inside, other=0.0).to(tl.float32)
        gain = rate * factor
        scaled = unit * factor
    if HAS_BIAS:
        scaled += tl.load(bias + dims, mask=inside, other=0.0).to(tl.float32)
    tl.store(h + row + dims, scaled.to(h.dtype.element_ty), mask=inside)
    for _ in range(queries):
        moved = tl.load(dx + row + dims, mask=inside, other=0.0).to(tl.float32)
        moved = moved - tl.sum(moved, 0) / WIDTH - unit * (tl.sum(unit * moved, 0) / WIDTH)
        tl.store(dh + row + dims, (gain * moved).to(dh.dtype.element_ty), mask=inside)
        row += size


@_jit
def _gelu_kernel(x, dx, y, dy, queries, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The value and all tangents of one block of elements, whose slopes are computed once."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    inside = start + tl.arange(0, BLOCK) < size
    values = tl.load(x + start + tl.arange(0, BLOCK), mask=inside, other=0.0).to(tl.float32)
    below = 0.5 + 0.5 * tl.erf(values * 0.7071067811865476)  # Φ(x)
    slope = below + values * tl.exp(-0.5 * values * values) * 0.3989422804014327  # + x φ(x)
    tl.store(y + start + tl.arange(0, BLOCK), (values * below).to(y.dtype.element_ty), mask=inside)
    for _ in range(queries):
        moved = tl.load(dx + start + tl.arange(0, BLOCK), mask=inside, other=0.0).to(tl.float32)
        tl.store(dy + start + tl.arange(0, BLOCK), (moved * slope).to(dy.dtype.element_ty), mask=inside)
        start += size
