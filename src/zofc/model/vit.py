"""The one walk through a timm vision transformer, with the places where PEFT modules enter.

The ViT is never copied, subclassed or patched: its own modules are called in its own order, and what an `Insert`
holds is added where it belongs. Tokens may carry leading axes, (..., tokens, width): a perturbed parameter brings a
leading query axis, and everything after it is evaluated for all queries at once.

A block has four stages, each ending where something may be inserted, so that a walk can stop in the middle of a block
and be taken up from there as often as needed: all that no moving parameter touches is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from timm.layers import Mlp
from timm.models.vision_transformer import Attention, Block, VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from zofc.errors import WeightsError

Additions = Callable[[Tensor], tuple[Tensor | None, Tensor | None, Tensor | None]]  # each (..., tokens, width)


@dataclass(frozen=True)
class Prefix:
    """Further keys and values of one block's attention, (..., length, width), broadcast over images and queries."""

    keys: Tensor
    values: Tensor
    compensated: bool = False  # the attention paid to the prefix is divided by its sum, so that it sums to one


@dataclass(frozen=True)
class Insert:
    """What is added to one block, each entry where its name says; absent ones cost nothing."""

    beside_attention: Callable[[Tensor], Tensor] | None = None  # reads LN1(x), joins the attention's output
    projections: Additions | None = None  # reads LN1(x), joins queries, keys and values
    prefix: Prefix | None = None
    beside_mlp: Callable[[Tensor], Tensor] | None = None  # reads LN2(x), joins the MLP's output
    across_mlp: Callable[[Tensor], Tensor] | None = None  # reads x before LN2, joins the residual sum

    @property
    def entrance(self) -> int:
        """The stage from which on the block depends on what is inserted."""
        if self.projections is not None or self.prefix is not None:
            return PROJECTED
        return ATTENDED if self.beside_attention is not None else MIXED


Inserts = Mapping[int, Insert]
NOTHING = Insert()
STARTED, PROJECTED, ATTENDED, MIXED, DONE = range(5)
GELU_IN_PLACE: Callable[[Tensor], Tensor] = torch._C._nn.gelu_  # type: ignore[attr-defined]  # no other name


class Place(NamedTuple):
    """A stage of a block."""

    block: int
    stage: int


class State(NamedTuple):
    """Where a walk stands, and what it carries from there."""

    place: Place
    x: Tensor  # the residual stream, ([queries,] batch, tokens, width)
    h: Tensor | None = None  # its norm: of LN1 at PROJECTED and ATTENDED, of LN2 at MIXED
    y: Tensor | None = None  # PROJECTED: queries, keys and values; ATTENDED: attention's output; MIXED: the MLP's


def check_known(vit: nn.Module) -> VisionTransformer:
    """A model whose blocks this walk does not know is refused, never silently wrong."""
    if not isinstance(vit, VisionTransformer):
        raise WeightsError(
            f"{type(vit).__name__} is not a timm VisionTransformer; choose one that zofc list backbones shows"
        )
    for number, block in enumerate(vit.blocks):
        gated = getattr(getattr(block, "attn", None), "gate", None) is not None
        if type(block) is not Block or type(block.attn) is not Attention or gated:
            found = f"{type(block).__name__} with {'gated ' * gated}{type(getattr(block, 'attn', None)).__name__}"
            raise WeightsError(f"block {number} is a {found}; only timm's pre-norm Block with Attention is supported")
    if vit.attn_pool is not None:
        raise WeightsError(
            "models that pool by attention are not supported; choose one with a class token or mean pooling"
        )
    return vit


def embed(vit: VisionTransformer, images: Tensor) -> Tensor:
    """Images (batch, 3, s, s) to tokens (batch, tokens, width), before the first block."""
    x = vit._pos_embed(vit.patch_embed(images))
    tokens: Tensor = vit.norm_pre(vit.patch_drop(x))
    return tokens


def attend(attn: Attention, qkv: Tensor, insert: Insert, h: Tensor, rows: slice | None = None) -> Tensor:
    """Attention over its projections (..., tokens, 3 · width) of h, with what is added to them and the keys and values
    put before its own; only for the queries of `rows`, if given. Its heads are joined, not yet projected."""
    parts: list[Tensor] = list(qkv.chunk(3, dim=-1))
    if insert.projections is not None:
        more = insert.projections(h)
        parts = [part if extra is None else part + extra for part, extra in zip(parts, more, strict=True)]
    if rows is not None:
        parts[0] = parts[0][..., rows, :]
    q, k, v = (_split_heads(part, attn.num_heads) for part in parts)  # (..., heads, tokens, width / heads)
    q, k = attn.q_norm(q), attn.k_norm(k)
    length = 0
    if insert.prefix is not None:
        length = insert.prefix.keys.shape[-2]
        k = _put_before(_split_heads(insert.prefix.keys.to(k.dtype), attn.num_heads), k)
        v = _put_before(_split_heads(insert.prefix.values.to(v.dtype), attn.num_heads), v)
    leading = _broadcast(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    if len(leading) > 1 or q.shape[:-3] != leading or k.shape[:-3] != leading:  # attention knows one batch axis
        q, k, v = (part.expand(*leading, *part.shape[-3:]).reshape(-1, *part.shape[-3:]) for part in (q, k, v))
    if insert.prefix is not None and insert.prefix.compensated:
        wide = torch.promote_types(q.dtype, torch.float32)  # in fp16 a small mass would be none
        weights = (attn.scale * q @ k.mT).to(wide).softmax(-1)
        mass = weights[..., :length].sum(-1, keepdim=True).clamp_min(1e-12)
        x = torch.cat([weights[..., :length] / mass, weights[..., length:]], dim=-1).to(v.dtype) @ v
    else:
        x = F.scaled_dot_product_attention(q, k, v, scale=attn.scale)
    return x.transpose(-3, -2).reshape(*leading, q.shape[-2], -1)


def _split_heads(x: Tensor, heads: int) -> Tensor:
    return x.reshape(*x.shape[:-1], heads, -1).transpose(-3, -2)


def _broadcast(*shapes: torch.Size) -> torch.Size:
    return torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call, no-any-return]


def _put_before(first: Tensor, then: Tensor) -> Tensor:
    """Along the tokens, other axes broadcast."""
    leading = _broadcast(first.shape[:-2], then.shape[:-2])
    return torch.cat([part.expand(*leading, *part.shape[-2:]) for part in (first, then)], dim=-2)


def mix(mlp: nn.Module, h: Tensor) -> Tensor:
    """A block's MLP. Where no backward pass will want it, what the exact GELU reads is overwritten by what it gives."""
    exact = type(mlp) is Mlp and type(mlp.act) is nn.GELU and mlp.act.approximate == "none"
    if torch.is_grad_enabled() or not exact:
        return mlp(h)  # type: ignore[no-any-return]
    parts = cast(Any, mlp)
    return parts.drop2(parts.fc2(parts.norm(parts.drop1(GELU_IN_PLACE(parts.fc1(h))))))  # type: ignore[no-any-return]


def advance(block: Block, state: State, insert: Insert, until: int = DONE, rows: slice | None = None) -> State:
    """One pre-norm block, x + attention, then x + MLP, from the stage it stands at to stage `until`. With `rows`, only
    those tokens are carried on beyond the keys and values, which are all that the others still serve for."""
    (number, stage), x, h, y = state
    del state
    if stage < PROJECTED <= until:
        h = block.norm1(x)
        y = block.attn.qkv(h)
    if stage < ATTENDED <= until:
        assert h is not None and y is not None
        y = attend(block.attn, y, insert, h, rows)
        y = block.attn.proj_drop(block.attn.proj(block.attn.norm(y)))
        if rows is not None:
            x, h = x[..., rows, :], h[..., rows, :]
    if stage < MIXED <= until:
        assert h is not None and y is not None
        if insert.beside_attention is not None:
            y = y + insert.beside_attention(h)
        x = x + block.drop_path1(block.ls1(y))
        del y  # nothing that is done with lies beside the widest tensors of a block
        h = block.norm2(x)
        y = mix(block.mlp, h)
    if stage < DONE <= until:
        assert h is not None and y is not None
        if insert.beside_mlp is not None:
            y = y + insert.beside_mlp(h)
        y = x + block.drop_path2(block.ls2(y))
        return State(Place(number + 1, STARTED), y if insert.across_mlp is None else y + insert.across_mlp(x))
    return State(Place(number, until), x, h, y)


def walk_block(block: Block, x: Tensor, insert: Insert) -> Tensor:
    """One block, whole."""
    return advance(block, State(Place(0, STARTED), x), insert).x


@cache
def compiled_advance() -> Callable[..., State]:
    """`advance` by torch's compiler, which falls back to the plain one where it cannot."""
    torch._dynamo.config.suppress_errors = True
    function: Callable[..., State] = torch.compile(advance)
    return function


def walk(
    vit: VisionTransformer,
    state: State,
    inserts: Inserts,
    until: Place | None = None,
    rows: slice | None = None,
    recompute: bool = False,
    compiled: bool = False,
) -> State:
    """From a state to the place `until`, the end by default; in the last block only `rows` are carried on. Where there
    will be a backward pass it may `recompute` a block's activations instead of keeping them, and be `compiled`."""
    last = len(vit.blocks) - 1
    end = until or Place(last + 1, STARTED)
    at = [state]  # each block is given what the one before it made, and nobody else holds it
    while at[0].place < end:
        number = at[0].place.block
        stop = DONE if number < end.block else end.stage
        insert, kept = inserts.get(number, NOTHING), rows if number == last else None
        if not torch.is_grad_enabled():
            at.append(advance(vit.blocks[number], at.pop(), insert, stop, kept))
            continue
        function = compiled_advance() if compiled else advance
        given = (vit.blocks[number], at.pop(), insert, stop, kept)
        if recompute:  # random layers draw by name: no generator has a state to keep, which would wait for the device
            at.append(checkpoint(function, *given, use_reentrant=False, preserve_rng_state=False))
        else:
            at.append(function(*given))
    return at[0]


def read_out(vit: VisionTransformer, x: Tensor) -> Tensor:
    """Tokens (..., tokens, width) after the last block to features (..., width): final norm, own pooling."""
    flat = vit.norm(x).reshape(-1, *x.shape[-2:])
    features: Tensor = vit.forward_head(flat, pre_logits=True)
    return features.reshape(*x.shape[:-2], features.shape[-1])
