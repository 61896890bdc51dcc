"""L2P, learning to prompt (Wang et al., CVPR 2022): prompts from a pool enter as tokens, chosen by keys.

The query is the plain ViT's feature; the N keys nearest to it by cosine name the prompts, which stand after the class
token and at its position. The classifier reads the mean of their outputs, and chosen keys are pulled to the queries:
loss = cross-entropy − λ · mean over images of Σ_chosen cos(query, key).

In training the images of a batch vote for the prompts of all; at test each image has its own, since a vote among test
images in the order of their classes reveals the task (the authors' code and `method.variant=zofc` vote there too).
Prompts, keys and classifier start as in the PyTorch port; `l2p.init=jax head.init=zeros` is the authors' JAX code.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from zofc import limits
from zofc.errors import RecipeError
from zofc.methods.base import method
from zofc.methods.classifier import Classifier
from zofc.model import vit as walking
from zofc.model.backbone import START, Backbone
from zofc.model.params import Moving, frozen, taken
from zofc.model.vit import State
from zofc.recipe import Recipe, Strict
from zofc.recipe.bounds import PoolSize, PromptTokens, Weight


class L2pSettings(Strict):
    """Learning to prompt: a pool of prompts, chosen by keys."""

    pool: PoolSize = Field(10, description="prompts there are, shared by all tasks")
    length: PromptTokens = Field(5, description="tokens of a prompt")
    top: PoolSize = Field(5, description="prompts chosen")
    pull: Weight = Field(0.1, description="weight of the pull between query and chosen keys")
    init: Literal["port", "jax"] = Field(
        "port", description="prompts and keys start uniform in (−1, 1), as in the PyTorch port, or jax: in (0, 0.01)"
    )


class Prompted(NamedTuple):
    """What the loss needs: features, and how near each image's query is to the keys chosen for it."""

    features: Tensor  # ([queries,] batch, width)
    pull: Tensor  # ([queries,] batch)


class PromptPool(nn.Module):
    """Prompts of several tokens and a key for each, all uniform."""

    def __init__(self, width: int, settings: L2pSettings, generator: torch.Generator) -> None:
        super().__init__()
        low, high = {"port": (-1, 1), "jax": (0, 0.01)}[settings.init]
        prompts = torch.empty(settings.pool, settings.length, width)
        self.prompts = frozen(prompts.uniform_(low, high, generator=generator))
        self.keys = frozen(torch.empty(settings.pool, width).uniform_(low, high, generator=generator))


def choose(similarity: Tensor, top: int, batchwise: bool) -> Tensor:
    """Ids of the `top` prompts for similarities ([queries,] batch, pool): per image ([queries,] batch, top), or one
    choice ([queries,] 1, top) for all images, the ids that most of them would choose, the smaller id if equally many.

    Every image names `top` different ids, so at least as many have votes, and the released code's padding of
    missing ids with zero votes can never be chosen.
    """
    ids = similarity.detach().topk(top, dim=-1).indices
    if not batchwise:
        return ids
    votes = F.one_hot(ids, similarity.shape[-1]).sum((-3, -2))  # ([queries,] pool)
    return votes.sort(dim=-1, descending=True, stable=True).indices[..., None, :top]


def take(prompts: Tensor, ids: Tensor) -> Tensor:
    """Prompts ([queries,] pool, length, width) by ids ([queries,] images, top), as tokens in a row:
    ([queries,] images, top · length, width)."""
    leading = prompts.shape[:-3] or ids.shape[:-2]
    rows = prompts.flatten(-2).expand(*leading, -1, -1)
    index = ids.flatten(-2)[..., None].expand(*leading, -1, 1)
    chosen = torch.take_along_dim(rows, index, dim=-2)
    return chosen.reshape(*leading, ids.shape[-2], -1, prompts.shape[-1])


@method("l2p", settings=L2pSettings)
class LearningToPrompt(Classifier):
    """A pool of prompts, chosen for a batch in training and for each image at test, that all tasks go on training."""

    regressed: ClassVar[bool] = False
    linear_init: ClassVar[str] = "trunc-normal"
    couples_images: ClassVar[str | None] = "L2P's images vote for their prompts, and vote within the images at a time"
    group_names: ClassVar[tuple[str, ...]] = ("peft", "head")

    def __init__(self, backbone: Backbone, recipe: Recipe) -> None:
        super().__init__(backbone, recipe)
        vit, settings = backbone.vit, recipe.section("l2p", L2pSettings)
        if vit.cls_token is None or vit.pos_embed is None or vit.no_embed_class:
            raise RecipeError(
                "backbone.name: L2P's prompts take the position of the class token, and that of "
                f"'{backbone.name}' has none; choose a ViT whose class token has a positional embedding"
            )
        if (
            settings.pool * settings.length > limits.POOL_TOKENS
            or settings.top * settings.length > limits.PROMPT_TOKENS
        ):
            raise RecipeError(
                f"l2p: pool times length may be at most {limits.POOL_TOKENS:,} tokens, and top times length "
                f"{limits.PROMPT_TOKENS:,}, which stand beside those of the image"
            )
        if settings.top > settings.pool:
            raise RecipeError(f"l2p.top: expected at most l2p.pool, {settings.pool}, got {settings.top}")
        pool = PromptPool(backbone.width, settings, self.generator("peft"))
        self.peft = pool.to(backbone.device)
        self.settings = settings

    def groups(self) -> dict[str, dict[str, Tensor]]:
        groups = super().groups()
        if not groups:
            return {}
        return {"peft": self.named(dict(self.peft.named_parameters()), "peft."), **groups}

    @torch.no_grad()
    def prepare(self, images: Tensor) -> Any:
        state = self.backbone.enter(images)
        return self.backbone.leave(state, {}), state.x  # query (batch, width), tokens (batch, tokens, width)

    def features(self, moving: Moving, prepared: Any) -> Any:
        return self.prompted(moving, prepared, batchwise=True)

    def prompted(self, moving: Moving, prepared: Any, batchwise: bool) -> Prompted:
        """Features with the chosen prompts, and how well their keys match."""
        vit, (query, tokens), pool = self.backbone.vit, prepared, taken(self.peft, moving, "peft.")
        similarity = F.normalize(query, dim=-1) @ F.normalize(pool["keys"], dim=-1).mT  # ([queries,] batch, pool)
        ids = choose(similarity, self.settings.top, batchwise)
        chosen = take(pool["prompts"], ids).to(tokens.dtype)
        prompts = vit.norm_pre(chosen + vit.pos_embed[:, :1])  # as every token enters
        count, shape = prompts.shape[-2], (*(prompts.shape[:-3] or tokens.shape[:-3]), tokens.shape[-3], -1, -1)
        x = torch.cat([part.expand(shape) for part in (tokens[..., :1, :], prompts, tokens[..., 1:, :])], dim=-2)
        read = slice(1, 1 + count)  # what the classifier reads
        recompute, compiled = self.backbone.recompute, self.backbone.compiled
        x = vit.norm(walking.walk(vit, State(START, x), {}, rows=read, recompute=recompute, compiled=compiled).x)
        pull = torch.take_along_dim(similarity, ids, dim=-1).sum(-1)
        return Prompted(vit.fc_norm(x.mean(-2)).to(pull.dtype), pull)

    def logits(self, moving: Moving, features: Any) -> Tensor:
        return super().logits(moving, features.features)

    def loss(self, moving: Moving, features: Any, labels: Tensor) -> Tensor:
        pull: Tensor = features.pull.mean(-1)
        return super().loss(moving, features, labels) - self.settings.pull * pull

    def extract(self, images: Tensor) -> Tensor:
        return self.prompted({}, self.prepare(images), batchwise=self.answers_together).features
