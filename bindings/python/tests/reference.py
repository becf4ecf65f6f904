"""Dispatch and combine as plain loops over all ranks at once, with numpy. Shares nothing with the library.

Values are kept as bits (uint16 for bf16, uint8 for fp8 and opaque rows) and compared as bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

PACKED_BY_RANK, PACKED_BY_EXPERT, SLOTTED_BY_RANK, SLOTTED_BY_EXPERT = range(4)

# --- numbers ---------------------------------------------------------------------------------------------------------


def to_f32(bits: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.float32)


def from_f32(x: np.ndarray, dtype: str) -> np.ndarray:
    """One rounding to nearest, ties to even; NaN becomes the canonical quiet NaN."""
    x = np.ascontiguousarray(x, np.float32)
    nan = np.isnan(x)
    if dtype == "bf16":
        bits = x.view(np.uint32).astype(np.uint64)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return np.where(nan, np.uint16(0x7FFF), rounded)
    if dtype == "fp16":
        with np.errstate(over="ignore"):
            half = x.astype(np.float16)
        return np.where(nan, np.uint16(0x7FFF), half.view(np.uint16)).view(np.float16)
    return np.where(nan, np.uint32(0x7FFFFFFF), x.view(np.uint32)).view(np.float32)


def fma(w: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """w * x + a in float32 with one rounding.

    The product is exact in float64. The sum is rounded to odd there, which makes the second rounding harmless.
    """
    p = np.float64(w) * x.astype(np.float64)
    a = a.astype(np.float64)
    s = p + a
    b = s - p
    error = (p - (s - b)) + (a - b)
    even = (s.view(np.int64) & 1) == 0
    odd = np.where((error != 0) & even, np.nextafter(s, np.copysign(np.inf, error)), s)
    return odd.astype(np.float32)


_E4M3 = np.array(
    [(m / 8 * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)) for e in range(16) for m in range(8)][:127],
    np.float32,
)


def to_e4m3(x: np.ndarray) -> np.ndarray:
    """Nearest of the 127 magnitudes, ties to the even code, saturating; NaN is 0x7f."""
    magnitude = np.minimum(np.abs(np.nan_to_num(x, nan=0.0, posinf=448.0, neginf=-448.0)), np.float32(448)).astype(
        np.float64
    )
    table = _E4M3.astype(np.float64)
    upper = np.clip(np.searchsorted(table, magnitude), 1, 126)
    lower = upper - 1
    up, down = table[upper] - magnitude, magnitude - table[lower]
    code = np.where((up < down) | ((up == down) & (upper % 2 == 0)), upper, lower).astype(np.uint8)
    code |= np.where(np.signbit(x), 0x80, 0).astype(np.uint8)
    return np.where(np.isnan(x), np.uint8(0x7F), code)


def cast_fp8(x: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """[n, H] float32 to bytes and scales: float32 per block of 128, or exponents packed in int32."""
    n, hidden = x.shape
    blocks = -(-hidden // 128)
    q = np.zeros((n, hidden), np.uint8)
    scales = np.zeros((n, blocks), np.float32)
    exponents = np.zeros((n, 4 * -(-blocks // 4)), np.uint8)
    f = np.float32
    for b in range(blocks):
        part = x[:, 128 * b : 128 * (b + 1)]
        finite = np.where(np.isfinite(part), np.abs(part), f(0))
        amax = np.maximum(finite.max(axis=1), f(1e-4))
        if kind == "fp32":
            scales[:, b] = amax * (f(1) / f(448))
            factor = f(448) / amax
        else:
            bits = (amax * (f(1) / f(448))).view(np.uint32)
            e = ((bits >> 23) & 255) + ((bits & 0x7FFFFF) != 0)
            exponents[:, b] = e
            scales[:, b] = np.ldexp(f(1), e.astype(np.int32) - 127)
            factor = np.ldexp(f(1), 127 - e.astype(np.int32)).astype(np.float32)
        with np.errstate(invalid="ignore"):
            q[:, 128 * b : 128 * (b + 1)] = to_e4m3(part * factor[:, None])
    return q, exponents.view(np.int32) if kind == "ue8m0" else scales


# --- the group -------------------------------------------------------------------------------------------------------


@dataclass
class Group:
    """What all ranks put in. ids[r] is [tokens of r, K], weights likewise."""

    layout: int
    num_ranks: int
    num_experts: int
    max_tokens: int
    ids: list[np.ndarray]
    weights: list[np.ndarray]
    alignment: int = 1
    owner: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.owner:
            each, more = divmod(self.num_experts, self.num_ranks)
            self.owner = [r for r in range(self.num_ranks) for _ in range(each + (r < more))]
        self.locals = [[e for e in range(self.num_experts) if self.owner[e] == r] for r in range(self.num_ranks)]
        self.clean = [np.array([_clean(row, self.num_experts) for row in ids], np.int64).reshape(ids.shape)
                      for ids in self.ids]  # fmt: skip

    @property
    def num_topk(self) -> int:
        return self.ids[0].shape[1]

    def ks(self, source: int, token: int, rank: int) -> list[int]:
        """The positions k of a token whose experts live on a rank."""
        return [k for k, e in enumerate(self.clean[source][token]) if e >= 0 and self.owner[e] == rank]

    def arrivals(self, rank: int) -> list[tuple[int, int]]:
        """(source, token) of each row that crosses to a rank, in order."""
        return [
            (s, t) for s in range(self.num_ranks) for t in range(len(self.ids[s])) if self.ks(s, t, rank)
        ]  # fmt: skip

    def placement(self, rank: int) -> tuple[tuple[int, ...], dict[tuple[int, ...], tuple[int, int, int]]]:
        """The shape of the rows without hidden, and (source, token, k or -1) of every used index."""
        local = self.locals[rank]
        used: dict[tuple[int, ...], tuple[int, int, int]] = {}
        arrivals = self.arrivals(rank)
        if self.layout == PACKED_BY_RANK:
            used = {(i,): (s, t, -1) for i, (s, t) in enumerate(arrivals)}
            return (len(arrivals),), used
        if self.layout == SLOTTED_BY_RANK:
            next_slot = [0] * self.num_ranks
            for s, t in arrivals:
                used[s, next_slot[s]] = (s, t, -1)
                next_slot[s] += 1
            return (self.num_ranks, self.max_tokens), used
        rows_of = {e: [(s, t, k) for s, t in arrivals for k in self.ks(s, t, rank) if self.clean[s][t][k] == e]
                   for e in local}  # fmt: skip
        if self.layout == SLOTTED_BY_EXPERT:
            for slab, e in enumerate(local):
                used.update({(slab, i): row for i, row in enumerate(rows_of[e])})
            return (len(local), self.num_ranks * self.max_tokens), used
        end = 0
        for e in local:
            used.update({(end + i,): row for i, row in enumerate(rows_of[e])})
            end = -(-(end + len(rows_of[e])) // self.alignment) * self.alignment
        return (end,), used


def _clean(row: np.ndarray, num_experts: int) -> list[int]:
    seen: set[int] = set()
    out = []
    for e in row.tolist():
        ok = 0 <= e < num_experts and e not in seen
        seen.add(e)
        out.append(e if ok else -1)
    return out


@dataclass
class Arrived:
    """What one rank should have received. `used` marks the rows whose data is defined."""

    used: np.ndarray
    x: np.ndarray
    scales: np.ndarray | None
    topk_idx: np.ndarray
    topk_weights: np.ndarray
    row_source: np.ndarray
    rank_counts: np.ndarray
    expert_counts: np.ndarray
    expert_offsets: np.ndarray | None
    source_ranges: np.ndarray | None
    true_rows: np.ndarray


def dispatch(group: Group, rank: int, rows: list[np.ndarray], scales: list[np.ndarray] | None = None) -> Arrived:
    """`rows[r]` is what rank r sends, as it crosses."""
    shape, used = group.placement(rank)
    local = group.locals[rank]
    k = group.num_topk
    by_expert = group.layout in (PACKED_BY_EXPERT, SLOTTED_BY_EXPERT)
    ids_shape = shape if by_expert else (*shape, k)
    x = np.zeros((*shape, rows[0].shape[1]), rows[0].dtype)
    s_out = None if scales is None else np.zeros((*shape, scales[0].shape[1]), scales[0].dtype)
    topk_idx = np.full(ids_shape, -1, np.int32)
    topk_weights = np.zeros(ids_shape, np.float32)
    row_source = np.full(shape, -1, np.int64)
    mask = np.zeros(shape, bool)
    for at, (s, t, kk) in used.items():
        mask[at] = True
        x[at] = rows[s][t]
        if s_out is not None and scales is not None:
            s_out[at] = scales[s][t]
        row_source[at] = s * group.max_tokens + t
        for one in group.ks(s, t, rank) if not by_expert else [kk]:
            where = at if by_expert else (*at, one)
            topk_idx[where] = local.index(group.clean[s][t][one])
            topk_weights[where] = group.weights[s][t, one]
    if group.layout == PACKED_BY_EXPERT:
        mask[:] = True  # pads are zeros
    arrivals = group.arrivals(rank)
    rank_counts = np.array([sum(s == r for s, _ in arrivals) for r in range(group.num_ranks)], np.int32)
    pairs = [(group.clean[s][t][kk], s) for s, t in arrivals for kk in group.ks(s, t, rank)]
    expert_counts = np.array([sum(e == one for e, _ in pairs) for one in local], np.int32)
    offsets = ranges = None
    expanded = len(arrivals)
    if group.layout == PACKED_BY_EXPERT:
        padded = [-(-n // group.alignment) * group.alignment for n in expert_counts.tolist()]
        offsets = np.array([sum(padded[:i]) for i in range(len(local) + 1)], np.int64)
        expanded = int(offsets[-1])
    if group.layout == SLOTTED_BY_EXPERT:
        ranges = np.zeros((len(local), group.num_ranks, 2), np.int32)
        for i, one in enumerate(local):
            begin = 0
            for s in range(group.num_ranks):
                count = pairs.count((one, s))
                ranges[i, s] = begin, count
                begin += count
        expanded = len(pairs)
    true_rows = np.array([len(arrivals), expanded], np.int64)
    return Arrived(mask, x, s_out, topk_idx, topk_weights, row_source, rank_counts, expert_counts, offsets, ranges,
                   true_rows)  # fmt: skip


def combine(
    group: Group,
    rank: int,
    outputs: list[np.ndarray],
    dtype: str,
    *,
    exact: bool = False,
    weights: bool = False,
    row_weights: list[np.ndarray] | None = None,
    bias: list[np.ndarray] | None = None,
) -> np.ndarray:
    """The sums of one rank's tokens. `outputs[d]` are the rows of rank d in its layout; `weights`: those of dispatch
    multiply, in REDUCED on the expert's rank, in EXACT on the token's."""
    hidden = outputs[0].shape[-1]
    where: list[dict[tuple[int, int, int], tuple[int, ...]]] = [
        {row: at for at, row in group.placement(d)[1].items()} for d in range(group.num_ranks)
    ]
    result = []
    for t in range(len(group.ids[rank])):
        acc = np.zeros(hidden, np.float32)
        for i, start in enumerate(bias or []):
            acc = to_f32(start[t], dtype) if i == 0 else acc + to_f32(start[t], dtype)
        for w, part in _parts(group, rank, t, where, outputs, dtype, exact, weights, row_weights):
            value = to_f32(part, dtype)
            acc = acc + value if w is None else fma(w, value, acc)
        result.append(from_f32(acc, dtype))
    return np.array(result, outputs[0].dtype).reshape(len(group.ids[rank]), hidden)


def _parts(group, rank, t, where, outputs, dtype, exact, weights, row_weights):
    """(weight or None, row) in the order of the sum on the token's rank."""
    by_expert = group.layout in (PACKED_BY_EXPERT, SLOTTED_BY_EXPERT)
    zero = np.zeros(outputs[0].shape[-1], np.float32)
    parts = []
    for d in range(group.num_ranks):
        ks = group.ks(rank, t, d)
        if not ks:
            continue
        if not by_expert:
            at = where[d][rank, t, -1]
            part = outputs[d][at]
            if row_weights is not None:
                part = from_f32(fma(row_weights[d][at], to_f32(part, dtype), zero), dtype)
            parts.append((d, None, part))
        elif exact:
            for k in ks:
                at = where[d][rank, t, k]
                part = outputs[d][at]
                if row_weights is not None:
                    part = from_f32(fma(row_weights[d][at], to_f32(part, dtype), zero), dtype)
                parts.append((k, group.weights[rank][t, k] if weights else None, part))
        else:
            acc = zero
            for k in ks:
                at = where[d][rank, t, k]
                value = to_f32(outputs[d][at], dtype)
                if row_weights is not None:
                    acc = fma(row_weights[d][at], value, acc)
                elif weights:
                    acc = fma(group.weights[rank][t, k], value, acc)
                else:
                    acc = acc + value
            parts.append((max(ks), None, from_f32(acc, dtype)))
    return [(w, part) for _, w, part in sorted(parts, key=lambda one: one[0])]


def carried(group: Group, rank: int, weights: list[np.ndarray]) -> np.ndarray:
    """[tokens, K] of what each rank sends back for the rank's tokens."""
    by_expert = group.layout in (PACKED_BY_EXPERT, SLOTTED_BY_EXPERT)
    out = np.zeros((len(group.ids[rank]), group.num_topk), np.float32)
    for d in range(group.num_ranks):
        for at, (s, t, k) in group.placement(d)[1].items():
            if s == rank and by_expert:
                out[t, k] += weights[d][at]
            elif s == rank:
                out[t] += weights[d][at]  # all K, also those of other ranks' experts
    out[group.clean[rank] < 0] = 0
    return out
