"""Facts about DualGPM: what it keeps, how much of the energy, and that it never lets go."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from zofc.model.subspace import Subspace, Subspaces, design, keep

WIDTH = 24


def moment(seed: int, decay: float = 0.7) -> Tensor:
    """A second moment with its energy in directions of its own."""
    g = torch.Generator().manual_seed(seed)
    turned = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=g, dtype=torch.float64))[0]
    return turned @ torch.diag(decay ** torch.arange(WIDTH, dtype=torch.float64)) @ turned.mT


def used(s: Subspace) -> Tensor:
    """The projector onto what old tasks use."""
    eye = torch.eye(WIDTH, dtype=torch.float64)
    return eye - s.leave_free(eye)


def kept(s: Subspace, h: Tensor) -> float:
    return float((used(s) @ h).square().sum() / h.square().sum())


def chain(count: int, threshold: float = 0.95, decay: float = 0.7) -> list[Subspace]:
    found: list[Subspace] = []
    for seed in range(count):
        found.append(keep(found[-1] if found else None, moment(seed, decay), threshold))
    return found


def test_the_first_task_keeps_the_directions_before_the_one_that_reaches_the_threshold() -> None:
    h = moment(0)
    u, s, _ = torch.linalg.svd(h)
    share = (s**2).cumsum(0) / (s**2).sum()
    count = int((share < 0.95).sum())
    found = keep(None, h, 0.95)
    assert found.columns == count and not found.free
    torch.testing.assert_close(used(found), u[:, :count] @ u[:, :count].mT)
    assert kept(found, h) < 0.95 <= float(share[count])
    assert keep(None, h, 0.01).columns == 1  # one at the least


def test_later_tasks_keep_the_threshold_and_no_column_too_many() -> None:
    found = chain(8)
    assert not found[1].free and found[-1].free  # it has switched on the way
    for task in range(1, 8):
        h = moment(task)
        assert kept(found[task], h) >= 0.95 - 1e-12
        grown = float(used(found[task]).trace() - used(found[task - 1]).trace())
        left = found[task - 1].leave_free(h)
        u = torch.linalg.svd(left)[0][:, : max(round(grown) - 1, 0)]  # one direction fewer would not do
        missed = float((left - u @ (u.mT @ left)).square().sum() / h.square().sum())
        assert round(grown) == 0 or 1 - missed < 0.95 + 1e-12


def test_what_is_used_only_grows_and_stays_orthonormal() -> None:
    found = chain(8)
    for old, new in pairwise(found):
        torch.testing.assert_close(used(new) @ used(old), used(old))
        torch.testing.assert_close(new.basis.mT @ new.basis, torch.eye(new.columns, dtype=torch.float64))
        assert new.columns <= WIDTH / 2


def test_the_switch_at_half_the_width_keeps_the_projector() -> None:
    basis = torch.linalg.qr(moment(3))[0]
    half, more = Subspace(basis[:, :12]), Subspace(basis[:, :13])
    assert half.smaller() is half
    assert more.smaller().free and more.smaller().columns == 11
    torch.testing.assert_close(used(more.smaller()), used(more))


def test_a_first_task_that_fills_more_than_half_is_kept_as_its_complement() -> None:
    h = moment(0, decay=0.97)
    found = keep(None, h, 0.95)
    assert found.free and found.columns < WIDTH / 2
    assert 0.9 < kept(found, h) < 0.95


@pytest.mark.parametrize("before", [False, True])
def test_inputs_seen_before_change_nothing(before: bool) -> None:
    old = chain(8 if before else 2)[-1]
    assert old.free == before
    again = keep(old, moment(7 if before else 1), 0.95)
    assert again.columns == old.columns and again.free == old.free
    torch.testing.assert_close(again.basis, old.basis)


def test_the_strictest_threshold_leaves_an_orthonormal_basis() -> None:
    """At τ = 1 directions without energy are not taken for directions, however the sums round."""
    flat = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    flat[:3, :3] = torch.eye(3)
    found = keep(keep(None, flat, 0.5), flat, 1.0)
    assert found.columns == 3
    full = keep(chain(8)[-1], moment(9), 1.0)
    assert full.free and full.columns == 0
    assert float(design(moment(10), 4, full).abs().max()) == 0  # nothing is left: the branch stays silent
    assert keep(full, moment(11), 1.0).columns == 0


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_a_design_reads_the_leading_free_directions_and_no_used_one(tasks: int) -> None:
    old, h = chain(tasks)[-1], moment(20)
    rows = design(h, 3, old)
    torch.testing.assert_close(3 * rows @ rows.mT, torch.eye(3, dtype=torch.float64))
    assert float((rows @ used(old)).abs().max()) < 1e-12
    leading = torch.linalg.svd(old.leave_free(h))[0][:, :3]
    torch.testing.assert_close(3 * rows.mT @ rows, leading @ leading.mT)


def test_stored_subspaces_come_back_as_they_were() -> None:
    store, copy = Subspaces(3, WIDTH), Subspaces(3, WIDTH)
    found = chain(8)
    store[0], store[1] = found[0], found[-1]
    store[0] = found[1]
    copy.load_state_dict(store.state_dict())
    for block, expected in ((0, found[1]), (1, found[-1])):
        got = copy[block]
        assert got is not None and got.free == expected.free and torch.equal(got.basis, expected.basis)
    assert copy[2] is None
