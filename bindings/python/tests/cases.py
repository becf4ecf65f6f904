"""One exchange of four ranks, described by a few words, run on one rank and checked against the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import reference as ref

import deepep
from deepep import DType, Layout, ScaleType

RANKS = 4
TOKENS = (16, 5, 0, 11)
HIDDEN = 272  # two whole blocks of scales and a short one
ROW_TYPES = {"bf16": DType.BF16, "fp16": DType.FP16, "fp32": DType.FP32}
SCALE_TYPES = {"fp32": ScaleType.FP32, "pow2": ScaleType.FP32_POW2, "ue8m0": ScaleType.UE8M0_PACKED}


@dataclass(frozen=True)
class Case:
    layout: Layout
    dtype: str = "bf16"
    """What is sent: bf16, fp16, fp32, opaque, fp8 (with FP32 scales)."""
    cast: str = ""
    """fp32, pow2 or ue8m0: cast to FP8 on the way, with scales of that kind."""
    combine_dtype: str = "bf16"
    exact: bool = False
    weights: bool = False
    row_weights: bool = False
    carry: bool = False
    bias: int = 0
    split: bool = False
    """Send and receive as two calls."""
    in_place: bool = False
    """Combine input in library memory."""
    owned: bool = False
    """All outputs in memory of the caller."""
    alignment: int = 1
    column_major: bool = False
    int32: bool = False
    sync: deepep.Sync = deepep.Sync.AUTO
    owner: tuple[int, ...] = ()
    steps: int = 1
    seed: int = 1

    @property
    def by_expert(self) -> bool:
        return self.layout in (Layout.PACKED_BY_EXPERT, Layout.SLOTTED_BY_EXPERT)

    @property
    def packed(self) -> bool:
        return self.layout in (Layout.PACKED_BY_RANK, Layout.PACKED_BY_EXPERT)


@dataclass
class Inputs:
    group: ref.Group
    sent: list[np.ndarray]
    """What each rank hands to dispatch."""
    sent_scales: list[np.ndarray] | None
    wire: list[np.ndarray]
    """What arrives of it."""
    wire_scales: list[np.ndarray] | None
    outputs: list[np.ndarray]
    """Expert outputs of each rank, NaN where no row is."""
    row_weights: list[np.ndarray]
    carried: list[np.ndarray]
    bias: list[list[np.ndarray]]


def inputs(case: Case, step: int) -> Inputs:
    """The same on every rank."""
    rng = np.random.default_rng(1000 * case.seed + step)
    experts, k = 10, 3
    ids, weights = [], []
    for tokens in TOKENS:
        chosen = np.array([rng.permutation(experts)[:k] for _ in range(tokens)], np.int64).reshape(tokens, k)
        chosen[rng.random((tokens, k)) < 0.2] = -1
        ids.append(chosen)
        weights.append(rng.random((tokens, k), np.float32))
    group = ref.Group(
        case.layout, RANKS, experts, max(TOKENS), ids, weights, alignment=case.alignment, owner=list(case.owner)
    )
    numbers = [(rng.standard_normal((tokens, HIDDEN)) * 3).astype(np.float32) for tokens in TOKENS]
    for x in numbers:
        x[:1, :4] = [np.inf, -np.inf, np.nan, 0]  # none of them may disturb its block
    scales: list[np.ndarray] | None = None
    if case.dtype == "opaque":
        sent = [rng.integers(0, 256, (tokens, HIDDEN), np.uint8) for tokens in TOKENS]
    elif case.dtype == "fp8":
        sent, scales = map(list, zip(*(ref.cast_fp8(x, "fp32") for x in numbers)))
    else:
        sent = [ref.from_f32(x, case.dtype) for x in numbers]
    wire, wire_scales = sent, scales
    if case.cast:
        cast = [ref.cast_fp8(ref.to_f32(x, case.dtype), case.cast) for x in sent]
        wire, wire_scales = map(list, zip(*cast))
    outputs, row_weights, carried = [], [], []
    for rank in range(RANKS):
        shape, used = group.placement(rank)
        y = np.full((*shape, HIDDEN), np.nan, np.float32)
        for at in used:
            y[at] = rng.standard_normal(HIDDEN) * 5
        outputs.append(ref.from_f32(y, case.combine_dtype))
        row_weights.append(rng.random(shape, np.float32))
        carried.append(rng.random(shape if case.by_expert else (*shape, k), np.float32))
    bias = [
        [ref.from_f32(rng.standard_normal((tokens, HIDDEN)), case.combine_dtype) for _ in range(case.bias)]
        for tokens in TOKENS
    ]
    return Inputs(group, sent, scales, wire, wire_scales, outputs, row_weights, carried, bias)


def config(case: Case) -> deepep.BufferConfig:
    return deepep.BufferConfig(
        num_experts=10,
        num_topk=3,
        max_tokens=max(TOKENS),
        max_row_bytes=4 * HIDDEN,
        max_scale_bytes=64,
        layout=case.layout,
        sync=case.sync,
        expert_alignment=case.alignment if case.layout == Layout.PACKED_BY_EXPERT else 0,
        timeout_ms=20000,
    )


def tensor(array: np.ndarray, dtype: str) -> deepep.Tensor:
    kinds = {**ROW_TYPES, "fp8": DType.FP8_E4M3, "opaque": DType.OPAQUE}
    return deepep.as_tensor(array, kinds[dtype])


def owned_outputs(case: Case, group: ref.Group, rank: int) -> tuple[deepep.DispatchOut, dict[str, np.ndarray]]:
    """Caller memory filled with junk, with room for all that may come."""
    local = len(group.locals[rank])
    rows = RANKS * max(TOKENS) * 3 + 10 * case.alignment if case.by_expert else RANKS * max(TOKENS)
    lead: tuple[int, ...] = (rows,)
    if case.layout == Layout.SLOTTED_BY_RANK:
        lead = (RANKS, max(TOKENS))
    if case.layout == Layout.SLOTTED_BY_EXPERT:
        lead = (local, RANKS * max(TOKENS))
    wire = "fp8" if case.cast else case.dtype
    row_dtype = {"bf16": np.uint16, "fp16": np.float16, "fp32": np.float32}.get(wire, np.uint8)
    ids = lead if case.by_expert else (*lead, 3)
    arrays = {
        "x": np.full((*lead, HIDDEN), 77, row_dtype),
        "topk_idx": np.full(ids, 77, np.int32),
        "topk_weights": np.full(ids, 77, np.float32),
        "row_source": np.full(lead, 77, np.int64),
        "rank_counts": np.full(RANKS, 77, np.int32),
        "expert_counts": np.full(local, 77, np.int32),
        "true_rows": np.full(2, 77, np.int64),
    }
    if case.layout == Layout.PACKED_BY_EXPERT:
        arrays["expert_offsets"] = np.full(local + 1, 77, np.int64)
    if case.layout == Layout.SLOTTED_BY_EXPERT:
        arrays["source_ranges"] = np.full((local, RANKS, 2), 77, np.int32)
    if wire == "fp8":
        packed = case.cast == "ue8m0"
        arrays["scales"] = np.full((*lead, 1 if packed else 3), 77, np.int32 if packed else np.float32)
    given: dict[str, Any] = dict(arrays)
    given["x"] = tensor(arrays["x"], wire)
    return deepep.DispatchOut(**given), arrays


def same(name: str, found: Any, wanted: np.ndarray) -> None:
    found = np.asarray(found)
    assert found.shape == wanted.shape, f"{name}: shape {found.shape}, not {wanted.shape}"
    if found.dtype.itemsize == wanted.dtype.itemsize:
        found = found.view(wanted.dtype)
    assert found.dtype == wanted.dtype, f"{name}: {found.dtype}, not {wanted.dtype}"
    if found.tobytes() != wanted.tobytes():
        at = np.argwhere(found.view(f"u{found.itemsize}") != wanted.view(f"u{wanted.itemsize}"))[0]
        raise AssertionError(f"{name}{at.tolist()}: {found[tuple(at)]}, not {wanted[tuple(at)]}")


def check_dispatch(case: Case, given: Inputs, rank: int, found: deepep.Dispatched) -> None:
    wanted = ref.dispatch(given.group, rank, given.wire, given.wire_scales)
    for name in ("rank_counts", "expert_counts", "expert_offsets", "source_ranges", "true_rows", "topk_idx",
                 "topk_weights", "row_source"):  # fmt: skip
        want = getattr(wanted, name)
        have = getattr(found, name)
        assert (have is None) == (want is None), name
        if want is not None:
            same(name, have, want)
    assert (found.num_rows is None) != case.packed
    same("x", np.asarray(found.x)[wanted.used], wanted.x[wanted.used])
    assert (found.scales is None) == (wanted.scales is None)
    if wanted.scales is not None:
        same("scales", np.asarray(found.scales)[wanted.used], wanted.scales[wanted.used])


def run(comm: deepep.Comm, case: Case) -> None:
    """The case on one rank."""
    rank = comm.rank
    with deepep.Buffer(comm, config(case), case.owner or None) as buffer, buffer.handle() as handle:
        for step in range(case.steps):
            given = inputs(case, step)
            group = given.group
            assert buffer.local_experts == tuple(group.locals[rank])
            found = _dispatch(case, handle, given, rank)
            check_dispatch(case, given, rank, found)
            sums = _combine(case, handle, given, rank)
            multiplied = case.weights or None
            wanted = ref.combine(
                group,
                rank,
                given.outputs,
                case.combine_dtype,
                exact=case.exact,
                weights=bool(multiplied),
                row_weights=given.row_weights if case.row_weights else None,
                bias=given.bias[rank],
            )
            same("combined", sums.x, wanted)
            assert (sums.carried_weights is not None) == case.carry
            if case.carry:
                same("carried", sums.carried_weights, ref.carried(group, rank, given.carried))
            assert buffer.report() is None


def _dispatch(case: Case, handle: deepep.Handle, given: Inputs, rank: int) -> deepep.Dispatched:
    ids = given.group.ids[rank]
    options: dict[str, Any] = {}
    if given.sent_scales is not None:
        options["x_scales"] = given.sent_scales[rank]
    if case.cast:
        options.update(wire_dtype=DType.FP8_E4M3, wire_scale_type=SCALE_TYPES[case.cast])
    arguments = (
        tensor(given.sent[rank], case.dtype),
        ids.astype(np.int32) if case.int32 else ids,
        given.group.weights[rank],
    )
    out = None
    if case.owned:
        out, _ = owned_outputs(case, given.group, rank)
    elif case.column_major:
        out = deepep.DispatchOut(column_major_scales=True)
    if case.split:
        handle.dispatch_send(*arguments, **options)
        return handle.dispatch_recv(out=out)
    return handle.dispatch(*arguments, **options, out=out)


def _combine(case: Case, handle: deepep.Handle, given: Inputs, rank: int) -> deepep.Combined:
    options: dict[str, Any] = {"exact": case.exact}
    if case.weights:
        options["weights_of_dispatch"] = True
    if case.row_weights:
        options["row_weights"] = given.row_weights[rank]
    if case.carry:
        options["carried_weights"] = given.carried[rank]
    bias = [tensor(b, case.combine_dtype) for b in given.bias[rank]]
    y = tensor(given.outputs[rank], case.combine_dtype)
    if case.in_place:
        area = handle.combine_input(ROW_TYPES[case.combine_dtype])
        room = np.asarray(area)
        room[...] = given.outputs[rank].view(room.dtype)
        y = None if case.split else area
    if case.split:
        handle.combine_send(y, **options)
        return handle.combine_recv(bias=bias)
    out = tensor(np.full((TOKENS[rank], HIDDEN), 55, given.outputs[rank].dtype), case.combine_dtype)
    combined = handle.combine(y, **options, bias=bias, out=out)
    assert combined.x is out
    return combined


def run_all(comm: deepep.Comm, some: list[Case]) -> None:
    for case in some:
        try:
            run(comm, case)
        except BaseException as error:
            raise AssertionError(f"{case}: {error}") from error
