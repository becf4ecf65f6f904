"""Four ranks send their tokens to experts and get the sums back: python examples/roundtrip.py"""

import multiprocessing

import numpy as np

import deepep

RANKS, EXPERTS, TOPK, TOKENS, HIDDEN = 4, 8, 2, 64, 256


def rank_main(rank: int, uid: deepep.UniqueId) -> int:
    rng = np.random.default_rng(rank)
    x = rng.integers(-8, 8, (TOKENS, HIDDEN)).astype(np.float32)
    experts = np.array([rng.permutation(EXPERTS)[:TOPK] for _ in range(TOKENS)])
    config = deepep.BufferConfig(
        num_experts=EXPERTS,
        num_topk=TOPK,
        max_tokens=TOKENS,
        max_row_bytes=HIDDEN * 4,
        layout=deepep.Layout.PACKED_BY_EXPERT,
    )
    with deepep.Comm(rank, RANKS, uid) as comm, deepep.Buffer(comm, config) as buffer, buffer.handle() as handle:
        received = handle.dispatch(x, experts)
        rows, local = received.x.numpy(), received.topk_idx.numpy()
        y = rows * (np.array(buffer.local_experts)[local, None] + 1).astype(np.float32)  # expert e: times e + 1
        result = handle.combine(y).x.numpy()
    assert np.array_equal(result, x * (experts + 1).sum(axis=1, keepdims=True)), f"rank {rank}: wrong sums"
    return len(rows)


if __name__ == "__main__":
    uid = deepep.UniqueId.create()  # on one rank; here multiprocessing carries it to the others
    with multiprocessing.get_context("spawn").Pool(RANKS) as pool:
        counts = pool.starmap(rank_main, [(rank, uid) for rank in range(RANKS)], chunksize=1)
    print(f"ok: {RANKS} ranks, {RANKS * TOKENS} tokens, rows per rank {counts}, every sum as expected")
