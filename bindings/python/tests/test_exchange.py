"""Dispatch and combine with four ranks, every byte compared with the reference."""

from __future__ import annotations

import pytest
import ranks
from cases import RANKS, Case, run, run_all

import deepep
from deepep import Layout

LAYOUTS = list(Layout)
BY_EXPERT = [Layout.PACKED_BY_EXPERT, Layout.SLOTTED_BY_EXPERT]


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "opaque", "fp8"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_row_types(layout: Layout, dtype: str) -> None:
    combine = dtype if dtype in ("bf16", "fp16", "fp32") else "bf16"
    ranks.threads(RANKS, run, Case(layout, dtype, combine_dtype=combine))


@pytest.mark.parametrize("cast", ["fp32", "pow2", "ue8m0"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_cast_to_fp8(layout: Layout, cast: str) -> None:
    ranks.threads(RANKS, run, Case(layout, "bf16", cast=cast))
    ranks.threads(RANKS, run, Case(layout, "fp32", cast=cast, owned=True, seed=2))


@pytest.mark.parametrize("cast", ["fp32", "ue8m0"])
@pytest.mark.parametrize("layout", BY_EXPERT)
def test_column_major_scales(layout: Layout, cast: str) -> None:
    ranks.threads(RANKS, run, Case(layout, "bf16", cast=cast, column_major=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_and_biases(layout: Layout) -> None:
    ranks.threads(RANKS, run, Case(layout, row_weights=True, carry=True, bias=1))
    ranks.threads(RANKS, run, Case(layout, combine_dtype="fp32", carry=True, bias=2, seed=2))


@pytest.mark.parametrize("layout", BY_EXPERT)
def test_exact_and_weights_of_dispatch(layout: Layout) -> None:
    ranks.threads(RANKS, run, Case(layout, exact=True))
    ranks.threads(RANKS, run, Case(layout, weights=True, combine_dtype="fp16", seed=2))
    ranks.threads(RANKS, run, Case(layout, exact=True, weights=True, carry=True, bias=2, seed=3))
    ranks.threads(RANKS, run, Case(layout, exact=True, row_weights=True, seed=4))


@pytest.mark.parametrize("sync", list(deepep.Sync))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_in_halves_and_in_place(layout: Layout, sync: deepep.Sync) -> None:
    ranks.threads(RANKS, run, Case(layout, split=True, sync=sync, steps=4))
    ranks.threads(RANKS, run, Case(layout, in_place=True, sync=sync, steps=4))
    ranks.threads(RANKS, run, Case(layout, in_place=True, split=True, owned=True, sync=sync, steps=4))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_alignment_map_and_int32_ids(layout: Layout) -> None:
    owner = (3, 0, 0, 3, 1, 3, 0, 3, 1, 0)  # rank 2 owns none
    ranks.threads(RANKS, run, Case(layout, owner=owner, int32=True, owned=True))
    ranks.threads(RANKS, run, Case(layout, alignment=8, exact=layout in BY_EXPERT, seed=2))


def test_four_processes() -> None:
    """All layouts, in place and in memory of the caller, between processes that share nothing but the unique id."""
    some = [Case(layout, steps=3) for layout in LAYOUTS]
    some += [Case(layout, "fp16", cast="ue8m0", owned=True, combine_dtype="fp32", carry=True) for layout in LAYOUTS]
    some += [Case(layout, exact=True, weights=True, bias=1, in_place=True, alignment=4) for layout in BY_EXPERT]
    ranks.processes(RANKS, run_all, some)
