"""The one walk through a timm vision transformer, with the places where PEFT modules enter.

The ViT is never copied, subclassed or patched: its own modules are called in its own order, and what an `Insert`
holds is added where it belongs. Tokens may carry leading axes, (..., tokens, width): a perturbed parameter brings a
leading query axis, and everything after it is evaluated for all queries at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from timm.models.vision_transformer import Attention, Block, VisionTransformer
from torch import Tensor, nn

from zofc.errors import WeightsError


@dataclass(frozen=True)
class Insert:
    """What is added to one block."""

    beside_mlp: Callable[[Tensor], Tensor]  # reads LN2(x), its result joins the MLP's before the residual


Inserts = Mapping[int, Insert]


def check_known(vit: nn.Module) -> VisionTransformer:
    """A model whose blocks this walk does not know is refused, never silently wrong."""
    if not isinstance(vit, VisionTransformer):
        raise WeightsError(
            f"{type(vit).__name__} is not a timm VisionTransformer; choose one that zofc list backbones shows"
        )
    for number, block in enumerate(vit.blocks):
        if type(block) is not Block or type(block.attn) is not Attention:
            found = f"{type(block).__name__} with {type(getattr(block, 'attn', None)).__name__}"
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


def walk_block(block: Block, x: Tensor, insert: Insert | None) -> Tensor:
    """One pre-norm block: x + attention, then x + MLP with what is inserted beside it."""
    h = block.norm1(x)
    attended = block.attn(h.reshape(-1, *h.shape[-2:])).reshape(h.shape)  # attention knows one batch axis
    x = x + block.drop_path1(block.ls1(attended))
    h = block.norm2(x)
    y = block.mlp(h)
    if insert is not None:
        y = y + insert.beside_mlp(h)
    out: Tensor = x + block.drop_path2(block.ls2(y))
    return out


def walk(vit: VisionTransformer, x: Tensor, inserts: Inserts, start: int = 0, stop: int | None = None) -> Tensor:
    """Tokens through blocks start..stop."""
    for number in range(start, len(vit.blocks) if stop is None else stop):
        x = walk_block(vit.blocks[number], x, inserts.get(number))
    return x


def read_out(vit: VisionTransformer, x: Tensor) -> Tensor:
    """Tokens (..., tokens, width) after the last block to features (..., width): final norm, own pooling."""
    flat = vit.norm(x).reshape(-1, *x.shape[-2:])
    features: Tensor = vit.forward_head(flat, pre_logits=True)
    return features.reshape(*x.shape[:-2], features.shape[-1])
