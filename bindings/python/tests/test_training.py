"""One training step of an expert layer over four ranks: forward, backward, weight gradients.

The forward exchange carries BF16, the backward exchange FP32 through the same routing. Everything is compared with the
same step computed in one process without any exchange.
"""

from __future__ import annotations

import numpy as np
import pytest
import ranks
import reference as ref

import deepep
from deepep import DType, Layout

RANKS, EXPERTS, TOPK, TOKENS, HIDDEN = 4, 8, 2, 24, 32


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Tokens (bf16 bits), ids, gate weights, expert matrices and the loss's gradient, of all ranks."""
    rng = np.random.default_rng(7)
    x = ref.from_f32(rng.standard_normal((RANKS, TOKENS, HIDDEN)), "bf16")
    ids = np.array([[rng.permutation(EXPERTS)[:TOPK] for _ in range(TOKENS)] for _ in range(RANKS)], np.int64)
    weights = rng.random((RANKS, TOKENS, TOPK), np.float32)
    matrices = (rng.standard_normal((EXPERTS, HIDDEN, HIDDEN)) / 8).astype(np.float32)
    gradient = rng.standard_normal((RANKS, TOKENS, HIDDEN)).astype(np.float32)
    return x, ids, weights, matrices, gradient


def one_process() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Output (bf16 bits), gradient of x, gradient of the gate weights, gradient of the matrices.

    output[t] = sum over k of weights[t, k] * round(x[t] @ matrices[ids[t, k]]), in ascending k.
    """
    x_bits, ids, weights, matrices, gradient = data()
    x = ref.to_f32(x_bits, "bf16")
    output = np.zeros_like(x)
    grad_x, grad_weights = np.zeros_like(x), np.zeros_like(weights)
    grad_matrices = np.zeros_like(matrices)
    for r in range(RANKS):
        for t in range(TOKENS):
            for k in range(TOPK):
                e, w = ids[r, t, k], weights[r, t, k]
                y = ref.to_f32(ref.from_f32(row_times(x[r, t], matrices[e]), "bf16"), "bf16")
                output[r, t] = ref.fma(w, y, output[r, t])
                grad_weights[r, t, k] = dot(y, gradient[r, t])
                grad_x[r, t] += w * row_times(gradient[r, t], matrices[e].T)
                grad_matrices[e] += np.outer(x[r, t], w * gradient[r, t])
    return ref.from_f32(output, "bf16"), grad_x, grad_weights, grad_matrices


def row_times(row: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """The same bits whatever other rows there are, which a matrix product does not promise."""
    return (row[:, None] * matrix).sum(axis=0, dtype=np.float32)


def dot(a: np.ndarray, b: np.ndarray) -> np.float32:
    return (a * b).sum(dtype=np.float32)


def step(comm: deepep.Comm, layout: Layout) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, tuple[int, ...]]:
    """The step on one rank."""
    x, ids, weights, matrices, gradient = (part[comm.rank] if part.shape[0] == RANKS else part for part in data())
    config = deepep.BufferConfig(
        num_experts=EXPERTS,
        num_topk=TOPK,
        max_tokens=TOKENS,
        max_row_bytes=HIDDEN * 4,
        layout=layout,
        timeout_ms=20000,
    )
    with deepep.Buffer(comm, config) as buffer, buffer.handle() as handle:
        mine = matrices[list(buffer.local_experts)]

        # Forward. The rows are needed again in the backward pass, so they are copied out of the window.
        got = handle.dispatch(deepep.as_tensor(x, DType.BF16), ids, weights)
        rows, experts = ref.to_f32(got.x.numpy(), "bf16"), got.topk_idx.numpy().copy()
        used = experts >= 0
        y = np.zeros(rows.shape, np.float32)
        for at in np.argwhere(used):
            y[tuple(at)] = row_times(rows[tuple(at)], mine[experts[tuple(at)]])
        y_bits = ref.from_f32(y, "bf16")
        output = handle.combine(deepep.as_tensor(y_bits, DType.BF16), exact=True, weights_of_dispatch=True).x.numpy()

        # Backward: the gradients take the same way in FP32, unweighted; the gate weights of the forward pass are kept.
        back = handle.dispatch(gradient, cached=True)
        assert back.topk_idx.numpy().tobytes() == experts.tobytes()
        incoming, w = back.x.numpy(), back.topk_weights.numpy()
        y = ref.to_f32(y_bits, "bf16")
        grad_rows = np.zeros(incoming.shape, np.float32)
        grad_w = np.zeros(w.shape, np.float32)
        grad_matrices = np.zeros_like(mine)
        for at in map(tuple, np.argwhere(used)):
            e = experts[at]
            grad_rows[at] = w[at] * row_times(incoming[at], mine[e].T)
            grad_w[at] = dot(y[at], incoming[at])
            grad_matrices[e] += np.outer(rows[at], w[at] * incoming[at])
        combined = handle.combine(grad_rows, exact=True, carried_weights=grad_w)
        assert combined.carried_weights is not None
        grad_weights = combined.carried_weights.numpy()
        return output, combined.x.numpy(), grad_weights, grad_matrices, buffer.local_experts


@pytest.mark.parametrize("layout", [Layout.PACKED_BY_EXPERT, Layout.SLOTTED_BY_EXPERT])
def test_training_step_matches_one_process(layout: Layout) -> None:
    output, grad_x, grad_weights, grad_matrices = one_process()
    for rank, (o, gx, gw, gm, experts) in enumerate(ranks.threads(RANKS, step, layout)):
        assert o.tobytes() == output[rank].tobytes()
        assert gx.tobytes() == grad_x[rank].tobytes()
        assert gw.tobytes() == grad_weights[rank].tobytes()
        # Rows arrive by (rank, token), which is the order of the loops above.
        assert gm.tobytes() == grad_matrices[list(experts)].tobytes()
