"""Facts about L2P and CODA-Prompt: what they train, which prompts enter where, their losses and their answers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.nn import functional as F

from conftest import grow_method, method_recipe, names_by_group, placements, shake
from zofc.errors import RecipeError
from zofc.methods.coda import CodaPrompt, CodaSettings, components_per_task
from zofc.methods.l2p import L2pSettings, LearningToPrompt, PromptPool, choose, take
from zofc.model.backbone import Backbone
from zofc.model.components import Components
from zofc.model.vit import PROJECTED, STARTED, Place
from zofc.optim.placement import Placement
from zofc.recipe import DataSettings, Group, HeadSettings, Recipe

FIRST = Group(order="first", lr=0.01, epochs=10)
ZEROTH = Group(order="zeroth", queries=2, epsilon=1e-3, clip=1.0, lr=0.01, epochs=10)
PLACEMENTS = placements(FIRST, ZEROTH)
LABELS = torch.tensor([0, 1, 0, 1, 1, 0])
NAMES = ("l2p", "coda")


def prompt_recipe(name: str, **sections: Any) -> Recipe:
    l2p = L2pSettings(pool=6, length=2, top=3)
    coda = CodaSettings(pool=6, length=4, blocks=(1, 2), orthogonality=0.1, per_task=2)
    return method_recipe(name, **{"l2p": l2p, "coda": coda, **sections})


def pair_learner(backbone: Backbone, recipe: Recipe, tasks: int = 1, dtype: torch.dtype = torch.float32) -> Any:
    """A method after so many tasks of two classes."""
    backbone.vit.to(dtype)
    return grow_method(backbone, recipe, *[2] * tasks).to(dtype)


# -- both ------------------------------------------------------------------------------------------------------------


def test_the_pools_have_the_published_sizes_at_vit_base() -> None:
    g = torch.Generator().manual_seed(0)
    assert sum(p.numel() for p in PromptPool(768, L2pSettings(), g).parameters()) == 46_080
    block = Components(768, 8)
    for _ in range(4):
        block.grow(25, g)
    assert 5 * sum(p.numel() for p in block.parameters()) == 3_840_000


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", NAMES)
def test_only_the_declared_groups_move_in_every_task(tiny: Backbone, images: Tensor, name: str, placement: str) -> None:
    """Bitwise: the ViT, the rows of old classes and old components are what they were; all declared tensors moved."""
    method = pair_learner(tiny, prompt_recipe(name), tasks=0)
    for task in range(3):
        method.extend(range(2 * task, 2 * task + 2))
        groups = method.groups()
        assert tuple(groups) == method.group_names == ("peft", "head")
        moving = {n for group in groups.values() for n in group}
        everything = {**dict(method.named_parameters()), **{f"vit.{n}": v for n, v in tiny.vit.named_parameters()}}
        before = {n: v.clone() for n, v in everything.items()}
        place = Placement(method, groups, PLACEMENTS[placement], seed=3, task=task)
        for step in range(2):
            place.step(images, LABELS + 2 * task, 0, step)
        for n, value in everything.items():
            assert torch.equal(value, before[n]) == (n not in moving), n
        assert names_by_group(groups)["head"] == {f"head.rows.{task}", f"head.bias.{task}"}
    if name == "l2p":
        assert names_by_group(groups)["peft"] == {"peft.prompts", "peft.keys"}
    else:
        kinds = ("prompts", "keys", "attentions")
        assert names_by_group(groups)["peft"] == {f"peft.{block}.{kind}.2" for block in (1, 2) for kind in kinds}


@pytest.mark.parametrize("name", NAMES)
def test_the_released_variant_also_walks_old_rows_and_components_but_only_under_zeroth_order(
    tiny: Backbone, images: Tensor, name: str
) -> None:
    variant = {"variant": "zofc"}
    method = pair_learner(tiny, prompt_recipe(name, method=variant, optimize=PLACEMENTS["zeroth order"]), tasks=2)
    groups = method.groups()
    assert {f"head.{part}.{task}" for part in ("rows", "bias") for task in (0, 1)} == set(groups["head"])
    assert set(groups["peft"]) == {n for n, _ in method.named_parameters() if n.startswith("peft.")}
    before = {n: v.clone() for n, v in method.named_parameters()}
    Placement(method, groups, PLACEMENTS["zeroth order"], seed=3, task=1).step(images, LABELS + 2, 0, 0)
    assert not any(torch.equal(v, before[n]) for n, v in method.named_parameters())
    current = names_by_group(pair_learner(tiny, prompt_recipe(name), tasks=2).groups())
    first = prompt_recipe(name, method=variant, optimize=PLACEMENTS["first order"])
    official = prompt_recipe(name, optimize=PLACEMENTS["zeroth order"])
    for other in (first, official):
        assert names_by_group(pair_learner(tiny, other, tasks=2).groups()) == current


def test_codas_released_variant_says_that_it_is_a_part_of_the_release(tiny: Backbone) -> None:
    for variant, placement, says in (("zofc", "zeroth order", True), ("zofc", "first order", False),
                                     ("official", "zeroth order", False)):  # fmt: skip
        recipe = prompt_recipe("coda", method={"variant": variant}, optimize=PLACEMENTS[placement])
        notice = pair_learner(tiny, recipe, tasks=1).begin_task(lambda: [])
        assert (notice is not None and "whole ViT" in notice) == says


@pytest.mark.parametrize("moved", ["all", "peft", "one tensor"])
@pytest.mark.parametrize("kind", ["linear", "cosine"])
@pytest.mark.parametrize("name", NAMES)
def test_stacked_evaluation_equals_one_by_one(tiny: Backbone, images: Tensor, name: str, kind: str, moved: str) -> None:
    method = pair_learner(tiny, prompt_recipe(name, head=HeadSettings(kind=kind)), 2, torch.float64)
    shake(method, 0.05)
    center = {n: v for group in method.groups().values() for n, v in group.items()}
    chosen = {n: v for n, v in center.items() if moved == "all" or n.startswith("peft.")}
    chosen = dict(list(chosen.items())[:1]) if moved == "one tensor" else chosen
    g = torch.Generator().manual_seed(1)
    points = [{n: v + torch.randn(v.shape, generator=g, dtype=v.dtype) for n, v in chosen.items()} for _ in range(4)]
    stacked = {n: torch.stack([point[n] for point in points]) for n in chosen}
    prepared, labels = method.prepare(images.double()), LABELS + 2
    together = method.features(stacked, prepared)
    losses, hits = method.loss(stacked, together, labels), method.hits(stacked, together, labels)
    assert losses.shape == hits.shape == (4,)
    for point, loss, hit in zip(points, losses, hits, strict=True):
        alone = method.features(point, prepared)
        assert abs(float(method.loss(point, alone, labels) - loss)) < 1e-10
        assert int(method.hits(point, alone, labels)) == int(hit)
    if name == "l2p" and moved != "one tensor":  # the perturbed keys choose differently, so selection was per query
        query = F.normalize(prepared[0], dim=-1)
        ids = choose(query @ F.normalize(stacked["peft.keys"], dim=-1).mT, 3, batchwise=True)
        assert len({tuple(sorted(row)) for row in ids[:, 0].tolist()}) > 1


@pytest.mark.parametrize("chunk", [4, 3])
@pytest.mark.parametrize("name", NAMES)
def test_a_zeroth_order_step_is_the_same_however_its_points_are_chunked(
    tiny: Backbone, images: Tensor, name: str, chunk: int
) -> None:
    moved = []
    for size in (1, chunk):
        method = pair_learner(tiny, prompt_recipe(name), 2, torch.float64)
        plan = ZEROTH.model_copy(update={"chunk": size})
        place = Placement(method, method.groups(), {"peft": plan, "head": plan}, seed=3, task=1)
        place.step(images.double(), LABELS + 2, 0, 0)
        moved.append(torch.cat([v.flatten() for v in method.parameters()]))
    torch.testing.assert_close(moved[0], moved[1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_first_order_training_lowers_the_loss(tiny: Backbone, images: Tensor, name: str) -> None:
    """Also of the prompts alone, the classifier left as it was drawn."""
    bright = images * 0.2 + 0.8 * LABELS.view(-1, 1, 1, 1)
    for trained in (("peft", "head"), ("peft",)):
        method = pair_learner(tiny, prompt_recipe(name, head={"kind": "linear", "init": "uniform"}))  # far from zero
        groups = {group: method.groups()[group] for group in trained}
        plans = dict.fromkeys(trained, Group(optimizer="adam", lr=0.02))
        place = Placement(method, groups, plans, seed=3, task=0)
        losses = [place.step(bright, LABELS, 0, step).loss for step in range(40)]
        assert losses[-1] < losses[0] - 0.2, trained


@pytest.mark.parametrize("name", NAMES)
def test_initial_values_depend_on_the_seed_and_a_saved_learner_can_be_restored(
    tiny: Backbone, images: Tensor, name: str
) -> None:
    one, other = pair_learner(tiny, prompt_recipe(name), 3), pair_learner(tiny, prompt_recipe(name), 3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    third = pair_learner(tiny, prompt_recipe(name, seed=4), 3)
    assert not any(
        torch.equal(a, b) for n, a in one.named_parameters() if "bias" not in n for b in [third.get_parameter(n)]
    )
    shake(one, 0.05)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.scores(images), other.scores(images)) and one.scores(images).shape == (6, 6)


@pytest.mark.parametrize("name", NAMES)
def test_the_query_is_the_plain_feature_and_nothing_is_recorded(tiny: Backbone, images: Tensor, name: str) -> None:
    query, _ = pair_learner(tiny, prompt_recipe(name)).prepare(images.clone().requires_grad_())
    assert torch.equal(query, tiny.features(images)) and not query.requires_grad


# -- L2P -------------------------------------------------------------------------------------------------------------

SIMILARITY = torch.tensor(  # two prompts each; votes: id 0 three, ids 1, 2, 3 one, id 4 two
    [
        [0.9, 0.1, 0.8, 0.0, 0.2],
        [0.9, 0.7, 0.1, 0.0, 0.2],
        [0.1, 0.0, 0.2, 0.6, 0.5],
        [0.8, 0.1, 0.3, 0.2, 0.7],
    ]
)


def test_prompts_are_chosen_per_image_or_by_vote_of_the_batch() -> None:
    assert choose(SIMILARITY, 2, batchwise=False).tolist() == [[0, 2], [0, 1], [3, 4], [0, 4]]
    assert choose(SIMILARITY, 2, batchwise=True).tolist() == [[0, 4]]
    assert choose(SIMILARITY[:3], 2, batchwise=True).tolist() == [[0, 1]]  # ids 1 to 4 have one vote: the smaller
    assert choose(SIMILARITY[2:3], 2, batchwise=True).tolist() == [[3, 4]]  # ids without votes are never taken
    everyone_else = torch.eye(200).roll(100, 1) + 0.5 * torch.eye(200)  # each id has two votes
    assert choose(everyone_else, 2, batchwise=True).tolist() == [[0, 1]]
    both = choose(torch.stack([SIMILARITY[:3], SIMILARITY[1:]]), 2, batchwise=True)  # with a query axis
    assert both.tolist() == [[[0, 1]], [[0, 4]]]


def test_chosen_prompts_become_tokens_in_a_row() -> None:
    prompts = torch.arange(2 * 3 * 2 * 4.0).reshape(2, 3, 2, 4)  # two queries of a pool of three
    ids = torch.tensor([[2, 0], [1, 2]])
    for got, pool in zip(take(prompts, torch.stack([ids, ids])), prompts, strict=True):
        assert torch.equal(got, torch.stack([torch.cat([pool[2], pool[0]]), torch.cat([pool[1], pool[2]])]))
    assert torch.equal(take(prompts[1], ids), take(prompts, ids)[1])


def plain_l2p(method: LearningToPrompt, image: Tensor, ids: list[int]) -> Tensor:
    """The feature of one image with these prompts, written out for a plain ViT."""
    vit = method.backbone.vit
    position = vit.pos_embed[:, :1]
    patches = vit.patch_embed(image[None]) + vit.pos_embed[:, 1:]
    prompts = torch.cat([method.peft.prompts[i] for i in ids])[None] + position
    x = torch.cat([vit.cls_token + position, prompts, patches], 1)
    for block in vit.blocks:
        x = x + block.attn(block.norm1(x))
        x = x + block.mlp(block.norm2(x))
    return vit.norm(x)[0, 1 : 1 + prompts.shape[1]].mean(0)


def test_l2ps_loss_and_answers_equal_a_plain_restatement(tiny: Backbone, images: Tensor) -> None:
    method, x, labels = pair_learner(tiny, prompt_recipe("l2p"), 2, torch.float64), images.double(), LABELS + 2
    shake(method, 0.05)
    cosines = F.cosine_similarity(tiny.features(x)[:, None], method.peft.keys[None], dim=-1)
    own = [sorted(range(6), key=lambda k: -float(row[k]))[:3] for row in cosines]
    votes = [sum(k in ids for ids in own) for k in range(6)]
    shared = sorted(range(6), key=lambda k: (-votes[k], k))[:3]
    assert any(set(ids) != set(shared) for ids in own)
    features = torch.stack([plain_l2p(method, image, shared) for image in x])
    logits = features @ torch.cat(list(method.head.rows)).T + torch.cat(list(method.head.bias))
    entropy = F.cross_entropy(logits.masked_fill(torch.arange(4) < 2, -torch.inf), labels)
    expected = entropy - 0.1 * cosines[:, shared].sum(1).mean()
    torch.testing.assert_close(method.loss({}, method.features({}, method.prepare(x)), labels), expected)
    alone = torch.stack([plain_l2p(method, image, ids) for image, ids in zip(x, own, strict=True)])
    torch.testing.assert_close(method.scores(x), method.head.logits({}, alone))
    torch.testing.assert_close(method.scores(x)[:2], method.scores(x[:2]))  # no answer depends on its neighbours


def test_the_released_l2p_votes_at_test_time_too(tiny: Backbone, images: Tensor) -> None:
    released = prompt_recipe("l2p", method={"variant": "zofc"})
    method = pair_learner(tiny, released, 1)
    voted = method.features({}, method.prepare(images)).features
    assert torch.equal(method.scores(images), method.head.logits({}, voted))
    each = torch.cat([method.scores(image[None]) for image in images])
    assert not torch.allclose(method.scores(images), each)


def test_unchosen_prompts_and_keys_have_no_gradient(tiny: Backbone, images: Tensor) -> None:
    method = pair_learner(tiny, prompt_recipe("l2p"))
    leaves = {n: v.detach().clone().requires_grad_() for n, v in method.groups()["peft"].items()}
    method.loss(leaves, method.features(leaves, method.prepare(images)), LABELS).backward()
    for value in leaves.values():
        assert value.grad is not None and int((value.grad.flatten(1).norm(dim=1) > 0).sum()) == 3


def kept_and_gradients(backbone: Backbone, images: Tensor) -> tuple[int, Any]:
    """How many numbers L2P keeps for its backward pass, and what that gives."""
    method = pair_learner(backbone, prompt_recipe("l2p"))
    moving = {name: value.detach().requires_grad_() for name, value in method.groups()["peft"].items()}
    kept: list[int] = []

    def keep(value: Tensor) -> Tensor:
        kept.append(value.numel())
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        loss = method.loss(moving, method.features(moving, method.prepare(images)), LABELS)
    return sum(kept), torch.autograd.grad(loss, list(moving.values()))


def test_l2p_can_compute_its_blocks_again_in_place_of_keeping_them(tiny: Backbone, images: Tensor) -> None:
    whole, plain = kept_and_gradients(tiny, images)
    fewer, again = kept_and_gradients(dataclasses.replace(tiny, recompute=True), images)
    assert 2 * fewer < whole
    torch.testing.assert_close(plain, again)


@pytest.mark.parametrize("how", [{"no_embed_class": True}, {"class_token": False, "global_pool": "avg"}])
def test_l2p_refuses_a_backbone_whose_class_token_has_no_position(how: dict[str, Any]) -> None:
    vit = VisionTransformer(img_size=16, patch_size=8, embed_dim=24, depth=1, num_heads=2, num_classes=0, **how)
    with pytest.raises(RecipeError, match=r"backbone\.name: .*class token.*'odd'"):
        LearningToPrompt(Backbone(vit, "odd", None, (0.5,), (0.5,)), prompt_recipe("l2p"))


def test_l2p_refuses_to_choose_more_prompts_than_there_are(tiny: Backbone) -> None:
    with pytest.raises(RecipeError, match=r"l2p\.top: expected at most l2p\.pool, 6, got 7"):
        LearningToPrompt(tiny, prompt_recipe("l2p", l2p=L2pSettings(pool=6, top=7)))


# -- CODA-Prompt -----------------------------------------------------------------------------------------------------


def test_new_components_are_orthonormal_to_all_earlier_ones_even_after_training(tiny: Backbone) -> None:
    method = pair_learner(tiny, prompt_recipe("coda"))
    for task in (1, 2):
        shake(method, 0.3)
        before = {n: v.clone() for n, v in method.named_parameters()}
        method.extend(range(2 * task, 2 * task + 2))
        assert all(torch.equal(method.get_parameter(n), v) for n, v in before.items())
        for number in (1, 2):
            for kind in ("prompts", "keys", "attentions"):
                parts = [part.flatten(1) for part in getattr(method.components(number), kind)]
                old, new = torch.cat(parts[:-1]), parts[-1]
                torch.testing.assert_close(new @ new.T, torch.eye(2), rtol=0, atol=1e-6)
                assert float((new @ old.T).abs().max()) < 1e-5


def test_with_orthonormal_earlier_components_it_is_gram_schmidt() -> None:
    block = Components(6, 2)
    block.grow(2, torch.Generator().manual_seed(0))
    block.grow(2, torch.Generator().manual_seed(1))
    g = torch.Generator().manual_seed(1)
    for kind, size in (("prompts", 12), ("keys", 6), ("attentions", 6)):
        own = getattr(block, kind)
        found = list(own[0].flatten(1).double())
        for draw in torch.randn(2, *own[1].shape[1:], generator=g, dtype=torch.float64).reshape(2, size):
            rest = draw - sum((draw @ u) * u for u in found)
            found.append(rest / rest.norm())
        torch.testing.assert_close(own[1].flatten(1), torch.stack(found[2:]).float(), rtol=0, atol=1e-6)


def test_codas_loss_and_prefixes_equal_a_plain_restatement(tiny: Backbone, images: Tensor) -> None:
    method, x, labels = pair_learner(tiny, prompt_recipe("coda"), 2, torch.float64), images.double(), LABELS + 2
    shake(method, 0.05)
    vit, query, penalty = tiny.vit, tiny.features(x), torch.zeros((), dtype=torch.float64)
    heads, y = 2, vit._pos_embed(vit.patch_embed(x))

    def split(tokens: Tensor) -> Tensor:
        return tokens.reshape(*tokens.shape[:2], heads, -1).transpose(1, 2)

    for number, block in enumerate(vit.blocks):
        h = block.norm1(y)
        q, k, v = block.attn.qkv(h).chunk(3, dim=-1)
        if number in (1, 2):
            own = method.components(number)
            components, keys, attentions = (torch.cat(list(p)) for p in (own.prompts, own.keys, own.attentions))
            weights = F.cosine_similarity(query[:, None] * attentions, keys[None], dim=-1)  # (batch, components)
            p = torch.einsum("bk,kld->bld", weights, components)
            prefix = own.prefix({}, query)
            torch.testing.assert_close(prefix.keys, p[:, :2])
            torch.testing.assert_close(prefix.values, p[:, 2:])
            k, v = torch.cat([p[:, :2], k], 1), torch.cat([p[:, 2:], v], 1)
            for part in (components.flatten(1), keys, attentions):
                penalty = penalty + ((part @ part.T - torch.eye(4)) ** 2).mean()
        attention = (split(q) @ split(k).mT / (24 / heads) ** 0.5).softmax(-1) @ split(v)
        y = y + block.attn.proj(attention.transpose(1, 2).reshape(h.shape))
        y = y + block.mlp(block.norm2(y))
    features = vit.norm(y)[:, 0]
    logits = features @ torch.cat(list(method.head.rows)).T + torch.cat(list(method.head.bias))
    torch.testing.assert_close(method.scores(x), logits)
    masked = logits.masked_fill(torch.arange(4) < 2, -torch.inf)
    expected = F.cross_entropy(masked, labels) + 0.1 * penalty
    torch.testing.assert_close(method.loss({}, method.features({}, method.prepare(x)), labels), expected)


def test_blocks_before_the_first_prefix_are_walked_once_per_step(tiny: Backbone, images: Tensor) -> None:
    """And of the first block with one, all that comes before the prefix."""
    _, state = pair_learner(tiny, prompt_recipe("coda")).prepare(images)
    assert state.place == Place(1, PROJECTED)
    assert torch.equal(state.x, tiny.enter(images, Place(1, STARTED)).x)


def test_the_pool_is_shared_out_among_the_planned_tasks() -> None:
    def of(data: DataSettings, **coda: Any) -> int:
        return components_per_task(prompt_recipe("coda", data=data, coda=CodaSettings(**coda)))

    assert of(DataSettings(classes=100, increment=5)) == 5
    assert of(DataSettings(classes=200, increment=5)) == 2
    assert of(DataSettings(classes=345, increment=69)) == 20
    assert of(DataSettings(classes=10, increment=3)) == 25  # 3, 3, 3, 1
    assert of(DataSettings(classes=100, first=50, increment=25)) == 33
    assert of(DataSettings(classes=5, first=5, increment=5)) == 100
    assert of(DataSettings(classes=100, increment=5, joint=True)) == 100
    assert of(DataSettings(classes=100, increment=5, then=("folder:more",))) == 5  # a continued run keeps its shapes
    assert of(DataSettings(), per_task=7) == 7
    with pytest.raises(RecipeError, match=r"coda\.per_task: .*data\.classes"):
        CodaPrompt.check(prompt_recipe("coda", coda=CodaSettings()), [2, 2])
    with pytest.raises(RecipeError, match=r"coda\.pool: 3 components are too few for 4 tasks"):
        of(DataSettings(classes=8, increment=2), pool=3)


def test_coda_refuses_what_cannot_be_built(tiny: Backbone) -> None:
    with pytest.raises(RecipeError, match=r"^coda\.blocks: 'first 5', but the backbone has 3 blocks"):
        CodaPrompt(tiny, prompt_recipe("coda", coda=CodaSettings(per_task=2)))
    with pytest.raises(RecipeError, match=r"^coda\.pool: at most 24, the backbone's width"):
        CodaPrompt(tiny, prompt_recipe("coda", coda=CodaSettings(pool=25), data=DataSettings(classes=4, increment=2)))
    method = CodaPrompt(tiny, prompt_recipe("coda", coda=CodaSettings(per_task=13, blocks="all")))
    method.extend(range(2))
    with pytest.raises(RecipeError, match=r"coda\.per_task: 13 components in each of 2 tasks.*width, 24"):
        method.extend(range(2, 4))
    assert len(method.tasks) == len(method.head.rows) == 1  # refused before anything grew
