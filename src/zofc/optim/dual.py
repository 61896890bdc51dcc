"""Dual numbers for forward gradients: a value with Q tangents, which any code that calls torch computes with.

A `Dual` takes the place of a tensor. Torch passes every function that is called with one to `__torch_function__`, so
methods, PEFT modules and the walk through the ViT contain no derivatives. Operators that cost time have rules, in which
the value is computed once for all tangents; any other function is differentiated by `torch.func` (vmap of jvp), which
is slower, always right, and cannot change a tensor in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from zofc.optim import kernels

Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}


class Dual(Tensor):
    """A value with its tangents, (Q, *shape of the value)."""

    primal: Tensor
    tangents: Tensor

    @staticmethod
    def __new__(cls, primal: Tensor, tangents: Tensor) -> Dual:  # noqa: D102
        assert tangents.shape[1:] == primal.shape, f"tangents {tuple(tangents.shape)} of {tuple(primal.shape)}"
        made = Tensor._make_wrapper_subclass(cls, primal.shape, dtype=primal.dtype, device=primal.device)
        made.primal, made.tangents = primal, tangents
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Dual({self.primal!r}, {self.tangents!r})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule, kwargs = RULES.get(func), kwargs or {}
        return rule(*args, **kwargs) if rule is not None else _generic(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise TypeError(f"{func} was called with a dual number, which __torch_function__ should have prevented")


def primal_of(value: Any) -> Any:
    """The value without its tangents."""
    return value.primal if isinstance(value, Dual) else value


def primals(tree: Any) -> Any:
    """The values in a tree of duals and tensors."""
    return tree_map(primal_of, tree)


def tangents(tree: Any, count: int) -> Any:
    """The tangents in a tree of duals and tensors; those of a plain tensor are `count` zeros."""

    def of(leaf: Any) -> Any:
        if isinstance(leaf, Dual):
            return leaf.tangents
        return leaf.new_zeros(()).expand(count, *leaf.shape) if isinstance(leaf, Tensor) else leaf

    return tree_map(of, tree)


def duals(values: Any, along: Any) -> Any:
    """One tree of duals from a tree of values and a tree of their tangents."""

    def join(value: Any, tangent: Any) -> Any:
        real = isinstance(value, Tensor) and value.is_floating_point()
        return Dual(value, tangent) if real else value

    return tree_map(join, values, along)


def _generic(func: Any, args: Any, kwargs: Any) -> Any:
    """Any function, differentiated by torch. Results that are not floating-point tensors have no tangents. The function
    is called more than once, so it must not change anything."""
    if name := _in_place(func, kwargs):
        raise RuntimeError(  # a TypeError would let Python take + for +=
            f"{name} changes a tensor in place, which forward gradients do not support: use the form that returns a "
            "new tensor, or the estimator spsa"
        )
    leaves, spec = tree_flatten((args, kwargs))
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Dual)]
    values = tuple(leaves[i].primal.contiguous() for i in where)  # torch refuses to differentiate expanded ones

    def call(*moved: Tensor) -> Any:
        filled = list(leaves)
        for i, value in zip(where, moved, strict=True):
            filled[i] = value
        some_args, some_kwargs = tree_unflatten(filled, spec)
        return func(*some_args, **some_kwargs)

    out, out_spec = tree_flatten(call(*values))
    real = [i for i, leaf in enumerate(out) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if real:

        def derivative(*along: Tensor) -> tuple[Tensor, ...]:
            def function(*moved: Tensor) -> tuple[Tensor, ...]:
                results = tree_leaves(call(*moved))
                return tuple(results[i] for i in real)

            slopes: tuple[Tensor, ...] = torch.func.jvp(function, values, along)[1]
            return slopes

        along = torch.func.vmap(derivative)(*(leaves[i].tangents for i in where))
        for i, tangent in zip(real, along, strict=True):
            out[i] = Dual(out[i], tangent)
    return tree_unflatten(out, out_spec)


def _in_place(func: Any, kwargs: Mapping[str, Any]) -> str:
    """The name of a function that changes its arguments, else an empty string."""
    name: str = getattr(func, "__name__", "")
    by_name = name == "__setitem__" if name.endswith("__") else name.endswith("_")  # x += y is add_
    return name if by_name or kwargs.get("inplace") or kwargs.get("out") is not None else ""


def rule(*functions: Any) -> Callable[[Rule], Rule]:
    """Register the tangent rule of torch functions."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(functions, function))
        return function

    return register


def _lift(tangent: Tensor, dims: int) -> Tensor:
    """Tangents (Q, *shape) with as many axes between Q and shape as a result with `dims` axes broadcasts to."""
    missing = dims + 1 - tangent.dim()
    return tangent.reshape(tangent.shape[0], *[1] * missing, *tangent.shape[1:]) if missing > 0 else tangent


def _total(parts: list[Tensor], primal: Tensor) -> Dual:
    """The sum of tangents, each broadcast to the shape of the value."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return Dual(primal, total.expand(total.shape[0], *primal.shape))


# -- functions that are linear in their one dual argument, or do not depend on its numbers ----------------------------

T: Any = Tensor
STRUCTURAL = [
    T.view, T.flatten, T.unflatten, T.permute, T.unbind, T.split, T.unsqueeze, T.squeeze, T.mean, T.sum,
]  # fmt: skip
ALONG_ALL = [
    T.double, T.float, T.bfloat16, T.half, T.to, T.cpu, T.contiguous, T.clone, T.neg, T.mT.__get__,
]  # fmt: skip
DESCRIBING = [
    T.shape.__get__, T.dtype.__get__, T.device.__get__, T.ndim.__get__, T.requires_grad.__get__, T.is_cuda.__get__,
    T.layout.__get__, T.dim, T.size, T.numel, T.is_floating_point, T.__len__, T.detach, T.argmax, T.stride,
    T.is_contiguous,
]  # fmt: skip


def _structural(func: Any, along_all: bool = False) -> Rule:
    """Apply a function to the value and to each tangent; `along_all`: to all tangents at once, since their leading axis
    makes no difference to it."""

    def apply(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, Dual) or any(isinstance(leaf, Dual) for leaf in tree_leaves((args, kwargs))):
            return _generic(func, (x, *args), kwargs)
        out = func(x.primal, *args, **kwargs)
        if along_all:
            return Dual(out, func(x.tangents, *args, **kwargs))
        along = torch.func.vmap(lambda t: func(t, *args, **kwargs))(x.tangents)
        return tree_map(Dual, out, along)

    return apply


def _describing(func: Any) -> Rule:
    def apply(x: Any, *args: Any, **kwargs: Any) -> Any:
        return func(primal_of(x), *args, **kwargs)

    return apply


RULES.update({func: _structural(func) for func in STRUCTURAL})
RULES.update({func: _structural(func, along_all=True) for func in ALONG_ALL})
RULES.update({func: _describing(func) for func in DESCRIBING})


# Functions that every block of a ViT calls have rules without `vmap`, which takes longer than they do.


def _behind(axis: int) -> int:
    """The axis of the tangents that is axis `axis` of the value."""
    return axis if axis < 0 else axis + 1


@rule(T.reshape)
def _reshape(x: Any, *shape: Any) -> Dual:
    lengths = _lengths(shape)
    return Dual(x.primal.reshape(lengths), x.tangents.reshape(x.tangents.shape[0], *lengths))


@rule(T.expand)
def _expand(x: Any, *shape: Any) -> Dual:
    lengths = _lengths(shape)
    out = x.primal.expand(lengths)
    return Dual(out, _lift(x.tangents, out.dim()).expand(x.tangents.shape[0], *lengths))


def _lengths(shape: Sequence[Any]) -> Sequence[Any]:
    """Lengths of axes, given one by one or as one sequence; in an export a length may be symbolic."""
    lengths: Sequence[Any] = shape[0] if isinstance(shape[0], Sequence) else shape
    return lengths


@rule(T.transpose)
def _transpose(x: Any, one: int, other: int) -> Dual:
    return Dual(x.primal.transpose(one, other), x.tangents.transpose(_behind(one), _behind(other)))


@rule(T.chunk)
def _chunk(x: Any, chunks: int, dim: int = 0) -> tuple[Dual, ...]:
    return tuple(map(Dual, x.primal.chunk(chunks, dim), x.tangents.chunk(chunks, _behind(dim))))


@rule(T.__getitem__)
def _getitem(x: Any, index: Any) -> Any:
    parts = index if isinstance(index, tuple) else (index,)
    if not all(part is None or part is Ellipsis or isinstance(part, int | slice) for part in parts):
        return _structural(T.__getitem__)(x, index)
    return Dual(x.primal[index], x.tangents[(slice(None), *parts)])


# -- rules of arithmetic ---------------------------------------------------------------------------------------------


@rule(T.add, torch.add)
def _add(a: Any, b: Any, *, alpha: float = 1) -> Dual:
    out = torch.add(primal_of(a), primal_of(b), alpha=alpha)
    parts = [_lift(a.tangents, out.dim())] if isinstance(a, Dual) else []
    if isinstance(b, Dual):
        parts.append(_lift(b.tangents if alpha == 1 else alpha * b.tangents, out.dim()))
    return _total(parts, out)


@rule(T.sub, torch.sub)
def _sub(a: Any, b: Any, *, alpha: float = 1) -> Dual:
    out = torch.sub(primal_of(a), primal_of(b), alpha=alpha)
    parts = [_lift(a.tangents, out.dim())] if isinstance(a, Dual) else []
    if isinstance(b, Dual):
        parts.append(_lift(-alpha * b.tangents, out.dim()))
    return _total(parts, out)


@rule(T.mul, torch.mul)
def _mul(a: Any, b: Any) -> Dual:
    x, y = primal_of(a), primal_of(b)
    out = torch.mul(x, y)
    parts = [_lift(a.tangents, out.dim()) * y] if isinstance(a, Dual) else []
    if isinstance(b, Dual):
        parts.append(_lift(b.tangents, out.dim()) * x)
    return _total(parts, out)


@rule(T.div, torch.div)
def _div(a: Any, b: Any, **kwargs: Any) -> Any:
    if isinstance(b, Dual) or kwargs:
        return _generic(torch.div, (a, b), kwargs)
    out = a.primal / b
    return _total([_lift(a.tangents, out.dim()) / b], out)


@rule(T.matmul, torch.matmul)
def _matmul(a: Any, b: Any) -> Any:
    x, y = primal_of(a), primal_of(b)
    if min(x.dim(), y.dim()) < 2:
        return _generic(torch.matmul, (a, b), {})
    out = x @ y
    parts = [_lift(a.tangents, out.dim()) @ y] if isinstance(a, Dual) else []
    if isinstance(b, Dual):
        parts.append(x @ _lift(b.tangents, out.dim()))
    return _total(parts, out)


# -- rules of a network ----------------------------------------------------------------------------------------------


NARROW = 64  # inputs up to which a layer's three tangents are one product of joined matrices


@rule(F.linear)
def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """d(x Wᵀ + b) = dx Wᵀ + x dWᵀ + db; where the output is the wide side, as one product that writes it once."""
    value, matrix = primal_of(x), primal_of(weight)
    out = F.linear(value, matrix, primal_of(bias))
    if isinstance(x, Dual) and isinstance(weight, Dual) and value.shape[-1] <= NARROW:
        count = x.tangents.shape[0]
        rows = value.reshape(1, -1, value.shape[-1]).expand(count, -1, -1)
        left = [x.tangents.reshape(count, -1, value.shape[-1]), rows]
        right = [matrix.expand(count, -1, -1), weight.tangents]
        if isinstance(bias, Dual):
            left.append(rows.new_ones(()).expand(count, rows.shape[1], 1))
            right.append(bias.tangents[..., None])
        return Dual(out, (torch.cat(left, -1) @ torch.cat(right, -1).mT).reshape(count, *out.shape))
    parts = []
    if isinstance(x, Dual):
        parts.append(F.linear(x.tangents, matrix))  # one product for all tangents
    if isinstance(weight, Dual):
        rows = value.reshape(1, -1, value.shape[-1]).expand(weight.tangents.shape[0], -1, -1)
        parts.append((rows @ weight.tangents.mT).reshape(-1, *out.shape))
    if isinstance(bias, Dual):
        parts.append(_lift(bias.tangents, out.dim()))
    return _total(parts, out)


@rule(F.layer_norm)
def _layer_norm(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, **kwargs: Any
) -> Any:
    if isinstance(weight, Dual) or isinstance(bias, Dual) or len(normalized_shape) > 1:
        return _generic(F.layer_norm, (x, normalized_shape, weight, bias, eps), kwargs)
    return Dual(*kernels.layer_norm(x.primal, x.tangents, weight, bias, eps))


@rule(F.gelu)
def _gelu(x: Any, approximate: str = "none") -> Any:
    if approximate != "none":
        return _generic(F.gelu, (x,), {"approximate": approximate})
    return Dual(*kernels.gelu(x.primal, x.tangents))


@rule(kernels.GELU_IN_PLACE)
def _gelu_in_place(x: Any) -> Any:
    kernels.gelu(x.primal, x.tangents, in_place=True)
    return x


@rule(F.relu, torch.relu, T.relu)
def _relu(x: Any, inplace: bool = False) -> Any:  # noqa: ARG001
    return Dual(torch.relu(x.primal), x.tangents * (x.primal > 0))


@rule(F.softmax, torch.softmax, T.softmax)
def _softmax(x: Any, dim: int, **kwargs: Any) -> Any:
    if kwargs or dim >= 0:
        return _generic(torch.softmax, (x, dim), {key: value for key, value in kwargs.items() if key == "dtype"})
    out = x.primal.softmax(dim)
    weighted = out * x.tangents
    return Dual(out, weighted - out * weighted.sum(dim, keepdim=True))


@rule(F.dropout)
def _dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: ARG001
    assert not training or p == 0, "random layers have no tangent rule"
    return x


@rule(F.scaled_dot_product_attention)
def _attention(q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, **kwargs: Any) -> Any:
    scale = kwargs.pop("scale", None)
    assert attn_mask is None and not dropout_p and not any(kwargs.values()), "plain attention alone has a tangent"
    q0, k0, v0 = (primal_of(part) for part in (q, k, v))
    dq, dk, dv = (part.tangents if isinstance(part, Dual) else None for part in (q, k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return Dual(*kernels.attention(q0, k0, v0, dq, dk, dv, scale))
