"""Comms, buffers and handles: meeting, errors, reports, lifetime."""

from __future__ import annotations

import gc
import json
import os
import pickle
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
import ranks

import deepep
from deepep import DType, Layout, Status

CONFIG = deepep.BufferConfig(num_experts=4, num_topk=2, max_tokens=8, max_row_bytes=64, timeout_ms=20000)
X = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)
IDS = np.array([[0, 3]] * 8, np.int64)


@pytest.fixture
def pair() -> Iterator[list[deepep.Buffer]]:
    comms = deepep.Comm.local(2)
    buffers = deepep.Buffer.local(comms, CONFIG)
    yield buffers
    for one in (*buffers, *comms):
        one.close()


def both(*work: Callable[[], Any]) -> list[Any]:
    """Runs one function per rank, each in a thread; results or exceptions."""
    results: list[Any] = [None] * len(work)

    def run(i: int) -> None:
        try:
            results[i] = work[i]()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


def single(**changes: Any) -> deepep.Buffer:
    fields = {**CONFIG.__dict__, **changes}
    return deepep.Buffer(deepep.Comm.local(1)[0], deepep.BufferConfig(**fields))


# --- meeting ---------------------------------------------------------------------------------------------------------


def test_unique_id() -> None:
    one, two = deepep.UniqueId.create(), deepep.UniqueId.create()
    assert one != two and len(bytes(one)) == 128
    assert deepep.UniqueId(bytes(one)) == one and pickle.loads(pickle.dumps(one)) == one
    assert bytes(one).hex() not in repr(one)
    with pytest.raises(deepep.CallerError, match="3 bytes"):
        deepep.UniqueId(b"abc")
    with pytest.raises(deepep.CallerError):
        deepep.UniqueId.create("no address")


def test_allgather_callback() -> None:
    board: dict[int, bytes] = {}
    meet = threading.Barrier(3)

    def join(rank: int) -> int:
        def allgather(mine: bytes) -> list[bytes]:
            board[rank] = mine
            meet.wait(20)
            everything = [board[r] for r in range(3)]
            meet.wait(20)
            return everything

        with deepep.Comm(rank, 3, allgather=allgather) as comm, deepep.Buffer(comm, CONFIG) as buffer:
            buffer.barrier()
            return buffer.statistics().barriers

    assert both(*(lambda rank=rank: join(rank) for rank in range(3))) == [1, 1, 1]


def test_an_exception_in_the_callback_is_the_cause_of_the_error() -> None:
    def allgather(mine: bytes) -> list[bytes]:
        raise KeyError("no network today")

    with pytest.raises(deepep.SubsystemError, match="no network today") as caught:
        deepep.Comm(0, 2, allgather=allgather)
    assert caught.value.status == Status.SYSTEM
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(deepep.SubsystemError, match="parts of"):
        deepep.Comm(0, 2, allgather=lambda mine: [mine])

    def interrupted(mine: bytes) -> list[bytes]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        deepep.Comm(0, 2, allgather=interrupted)


def test_a_rank_that_never_comes() -> None:
    with pytest.raises(deepep.PeerTimeoutError) as caught:
        deepep.Comm(0, 2, deepep.UniqueId.create(), timeout_ms=300)
    assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, deepep.PeerError)
    assert "1" in caught.value.detail


@pytest.mark.parametrize("arguments", [(2, 2), (-1, 2), (0, 0), (0, 5000), (0, 2**33)])
def test_comm_arguments(arguments: tuple[int, int]) -> None:
    with pytest.raises(deepep.CallerError) as caught:
        deepep.Comm(*arguments, deepep.UniqueId.create())
    assert caught.value.status == Status.INVALID_ARGUMENT


def test_cuda_is_unsupported_by_name() -> None:
    with pytest.raises(deepep.UnsupportedError):
        deepep.Comm.local(2, backend=deepep.Backend.CUDA)


def test_configurations_that_differ_are_the_same_error_on_every_rank() -> None:
    comms = deepep.Comm.local(2)
    configs = [CONFIG, deepep.BufferConfig(num_experts=4, num_topk=2, max_tokens=9, max_row_bytes=64)]
    failures = both(*(lambda r=r: deepep.Buffer(comms[r], configs[r]) for r in range(2)))
    for failure in failures:
        assert isinstance(failure, deepep.CallerError) and failure.status == Status.CONFIG_MISMATCH
        assert "max_tokens" in failure.detail


def test_buffer_config() -> None:
    comm = deepep.Comm.local(1)[0]
    for changes, text in (
        ({"num_topk": 5}, "num_topk"),
        ({"max_row_bytes": 24}, "max_row_bytes"),
        ({"num_experts": 2**40}, "num_experts: 1099511627776 does not fit"),
        ({"layout": 9}, "layout"),
    ):
        with pytest.raises(deepep.CallerError, match=text):
            deepep.Buffer(comm, deepep.BufferConfig(**{**CONFIG.__dict__, **changes}))
    with pytest.raises(deepep.CallerError, match="3 entries for 4 experts"):
        deepep.Buffer(comm, CONFIG, [0, 0, 0])
    sizes = deepep.buffer_sizes(comm, CONFIG)
    assert sizes.total_symmetric == sizes.dispatch_window + sizes.combine_window + sizes.signals
    assert sizes.total_device == sizes.total_symmetric + sizes.local_outputs


# --- operations ------------------------------------------------------------------------------------------------------


def test_arguments_of_operations() -> None:
    with single() as buffer, buffer.handle() as handle:
        for arguments, options, text in (
            ((X, IDS[:7]), {}, r"topk_idx: shape \[7, 2\], not \[8, 2\]"),
            ((X, IDS.astype(np.float32)), {}, "topk_idx: FP32, not INT32 or INT64"),
            ((X, np.asfortranarray(IDS)), {}, "topk_idx: the elements must follow"),
            ((X, IDS, np.ones((8, 2))), {}, "topk_weights: float64"),
            ((X, IDS), {"x_scales": np.ones((7, 1), np.float32)}, "x_scales: 7 rows"),
            ((np.zeros((9, 16), np.float32), np.zeros((9, 2), np.int64)), {}, "max_tokens|num_tokens"),
            ((X,), {}, "topk_idx"),
            ((X, IDS), {"out": deepep.DispatchOut(rank_counts=bytes(4))}, "out.rank_counts: the memory is read-only"),
            ((X, IDS), {"out": deepep.DispatchOut(source_ranges=IDS)}, "PACKED_BY_RANK has none"),
        ):
            with pytest.raises(deepep.CallerError, match=text):
                handle.dispatch(*arguments, **options)
        with pytest.raises(deepep.CallerError) as caught:
            handle.combine(X)
        assert caught.value.status == Status.INVALID_STATE
        received = handle.dispatch(X, IDS)  # works afterwards
        assert received.x.tobytes() == X.tobytes()
        for options, text in (
            ({"x": X[:3]}, "x: 3 rows, the dispatch received 8"),
            ({"x": X, "out": np.zeros((8, 8), np.float32)}, r"out: shape \[8, 8\], not \[8, 16\]"),
            ({"x": X, "bias": [X, X, X]}, "at most 2"),
            ({"x": X, "bias": [X[:, :8]]}, r"bias\[0\]: shape"),
            ({"x": X, "carried_out": np.zeros((8, 2), np.float32)}, "no weights are carried"),
            ({}, "combine_input first"),
        ):
            with pytest.raises(deepep.CallerError, match=text):
                handle.combine(**options)
        with pytest.raises(deepep.UnsupportedError):
            handle.combine(X, exact=True)
        with pytest.raises(deepep.BusyError):
            handle.dispatch(X, IDS)
        assert handle.combine(received.x).x.tobytes() == X.tobytes()


def test_bad_ids_are_reported_once() -> None:
    with single() as buffer, buffer.handle() as handle:
        ids = IDS.copy()
        ids[3, 1] = 77
        handle.dispatch(X, ids)
        report = buffer.report()
        assert report is not None
        assert (report.status, report.row, report.value) == (Status.INVALID_EXPERT_ID, 3, 77)
        assert report.operation == deepep.Operation.DISPATCH and report.missing == ()
        assert buffer.report() is None
    with single(refuse_bad_ids=True) as buffer, buffer.handle() as handle:
        with pytest.raises(deepep.CallerError, match="77") as caught:
            handle.dispatch(X, ids)
        assert caught.value.status == Status.INVALID_EXPERT_ID
        handle.dispatch(X, IDS)


def test_a_missing_rank_is_named_and_reset_goes_on(pair: list[deepep.Buffer]) -> None:
    handles = [buffer.handle() for buffer in pair]
    received = both(lambda: handles[0].dispatch(X, IDS), lambda: handles[1].dispatch(X, IDS))
    pair[0].set_timeout(200)
    with pytest.raises(deepep.PeerTimeoutError) as caught:
        handles[0].combine(received[0].x)
    assert caught.value.ranks == (1,)
    assert caught.value.report is not None and caught.value.report.waited_ms >= 200
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.ranks, str(again)) == (type(caught.value), (1,), str(caught.value))
    with pytest.raises(deepep.PeerTimeoutError):
        handles[0].combine(received[0].x)
    report = pair[0].report()
    assert report is not None and report.ranks == (1,)
    pair[0].set_timeout(20000)
    assert both(pair[0].reset, pair[1].reset) == [None, None]
    assert pair[0].report() is None and pair[0].alive() == (True, True)
    with pytest.raises(deepep.CallerError, match="given back to the library by reset"):
        received[0].x.numpy()
    received = both(lambda: handles[0].dispatch(X, IDS), lambda: handles[1].dispatch(X, IDS))
    assert [one.num_rows for one in received] == [16, 16]


def test_abort_ends_a_wait(pair: list[deepep.Buffer]) -> None:
    handle = pair[0].handle()

    def stop() -> None:
        time.sleep(0.2)
        pair[1].comm.abort("out of coffee")

    begin = time.monotonic()
    failure, _ = both(lambda: handle.dispatch(X, IDS), stop)
    assert time.monotonic() - begin < 10
    assert isinstance(failure, deepep.AbortedError)
    assert failure.ranks == (1,) and "out of coffee" in failure.detail
    with pytest.raises(deepep.AbortedError):
        pair[0].reset()


def test_numbers_of_a_dispatch(pair: list[deepep.Buffer]) -> None:
    def work(rank: int) -> tuple[Any, ...]:
        with pair[rank].handle() as handle:
            received = handle.dispatch(X[: 8 - rank], IDS[: 8 - rank])
            counts = handle.wait_counts()
            again = handle.wait_counts(1000)
            handle.release()
            return counts, again, received.num_rows, handle.num_tokens

    results = both(lambda: work(0), lambda: work(1))
    assert results[0] == (((15, 0), 15), ((15, 0), 15), 15, 8)
    assert results[1] == (((0, 15), 15), ((0, 15), 15), 15, 7)
    totals = pair[0].statistics()
    assert (totals.epoch, totals.dispatches, totals.combines) == (1, 1, 0)
    assert totals.rows_received == 15 == sum(pair[0].peer_statistics(r).rows_received for r in range(2))
    assert pair[0].expert_statistics() == (15, 0)
    with pytest.raises(deepep.CallerError):
        pair[0].peer_statistics(2)


def test_num_tokens_device() -> None:
    with single() as buffer, buffer.handle() as handle:
        received = handle.dispatch(X, IDS, num_tokens_device=np.array([5], np.int32))
        assert received.num_rows == 5
        with pytest.raises(deepep.CallerError, match="num_tokens_device"):
            handle.dispatch(X, IDS, num_tokens_device=np.array([5], np.int64))


def test_trace_is_json() -> None:
    with single(trace=True) as buffer, buffer.handle() as handle:
        handle.combine(handle.dispatch(X, IDS).x)
        assert len(json.loads(buffer.trace())) > 0
    with single() as buffer, pytest.raises(deepep.CallerError) as caught:
        buffer.trace()
    assert caught.value.status == Status.INVALID_STATE


def test_no_numpy_needed() -> None:
    """Plain buffers of the interpreter are tensors too."""
    x = memoryview(bytes(range(64)) * 8).cast("B", (8, 64))
    ids = memoryview(bytearray(IDS.tobytes())).cast("q", (8, 2))
    with single() as buffer, buffer.handle() as handle:
        received = handle.dispatch(x, ids)
        assert received.dtype == DType.OPAQUE and received.x.tobytes() == x.tobytes()
        assert received.topk_idx.tobytes() == IDS.astype(np.int32).tobytes()


# --- lifetime --------------------------------------------------------------------------------------------------------


def test_close_is_explicit_and_may_be_repeated() -> None:
    comm = deepep.Comm.local(1)[0]
    buffer = deepep.Buffer(comm, CONFIG)
    handle = buffer.handle()
    comm.close()
    comm.close()
    assert "closed" in repr(comm)
    with pytest.raises(deepep.CallerError, match="comm is closed"):
        comm.abort()
    handle.dispatch(X, IDS)  # buffers of the comm stay usable
    for _ in range(2):
        handle.close()
    with pytest.raises(deepep.CallerError, match="handle is closed"):
        handle.release()
    handle = buffer.handle()
    for _ in range(2):
        buffer.close()
    for call in (buffer.barrier, buffer.handle, buffer.statistics, handle.release):
        with pytest.raises(deepep.CallerError, match="buffer is closed") as caught:
            call()
        assert caught.value.status == Status.INVALID_STATE
    handle.close()


def test_memory_stays_mapped_for_arrays_that_outlive_it() -> None:
    buffer = single()
    handle = buffer.handle()
    received = handle.dispatch(X, IDS)
    x, source = received.x.numpy(), np.from_dlpack(received.row_source)
    handle.close()
    buffer.close()
    with pytest.raises(deepep.CallerError, match="close"):
        received.x.numpy()
    del received, handle, buffer
    gc.collect()
    assert x.shape == (8, 16) and source.shape == (8,)
    assert x.sum() >= 0 and source.sum() >= 0  # readable, whatever it says


def test_results_end_with_the_operation_that_gives_them_back() -> None:
    with single() as buffer, buffer.handle() as handle:
        first = handle.dispatch(X, IDS)
        handle.combine(first.x)
        with pytest.raises(deepep.CallerError, match="given back to the library by combine"):
            first.x.numpy()
        assert first.rank_counts.numpy().tolist() == [8]  # holds until the next dispatch
        handle.combine(X)  # rows of the caller may be combined again
        second = handle.dispatch(X, IDS)
        with pytest.raises(deepep.CallerError, match="the next dispatch"):
            first.rank_counts.numpy()
        handle.release()
        with pytest.raises(deepep.CallerError, match="release"):
            _ = second.x.__array_interface__


def test_forgotten_handles_are_destroyed_at_the_next_call() -> None:
    with single(dispatch_windows=2) as buffer:
        handle = buffer.handle()
        handle.combine(handle.dispatch(X, IDS).x)
        del handle
        gc.collect()
        assert len(buffer._core.record.orphans) == 1
        with buffer.handle() as another:
            assert not buffer._core.record.orphans
            another.combine(another.dispatch(X, IDS).x)
        leaked = buffer.handle()
        leaked.dispatch(X, IDS)
        with pytest.warns(ResourceWarning, match="rows open"):
            del leaked
            gc.collect()
        buffer.handle().close()
        assert len(buffer._core.record.orphans) == 1  # its destroy has a place in the order of calls, so not now


def resources() -> tuple[int, int]:
    """Open descriptors and memory mappings."""
    return len(os.listdir("/proc/self/fd")), len(Path("/proc/self/maps").read_text().splitlines())


def test_nothing_is_left_after_many_cycles() -> None:
    def cycle() -> None:
        with single(layout=Layout.PACKED_BY_EXPERT) as buffer, buffer.handle() as handle:
            handle.combine(handle.dispatch(X, IDS).x)

    cycle()
    gc.collect()
    before = resources()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(50):
            cycle()
    after = resources()
    assert after[0] <= before[0] and after[1] <= before[1] + 8


def test_many_ranks_as_threads() -> None:
    def work(comm: deepep.Comm) -> int:
        with deepep.Buffer(comm, CONFIG) as buffer, buffer.handle() as handle:
            received = handle.dispatch(X, IDS)
            handle.combine(received.x)
            return received.num_rows or 0

    assert ranks.threads(9, work) == [72, 0, 0, 72, 0, 0, 0, 0, 0]
