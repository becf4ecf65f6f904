"""Runs one function on every rank: as threads of this process, or as processes of their own."""

from __future__ import annotations

import multiprocessing
import threading
import traceback
from typing import Any, Callable

import deepep

TIMEOUT_S = 60


def threads(num_ranks: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """`function(comm, *args)` on every rank; the results in rank order."""
    comms = deepep.Comm.local(num_ranks)
    results: list[Any] = [None] * num_ranks
    failures: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            results[rank] = function(comms[rank], *args)
        except BaseException as error:
            if not failures:
                comms[rank].abort(f"test failed: {error}")
            failures.append(error)

    running = [threading.Thread(target=work, args=(rank,)) for rank in range(num_ranks)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive(), "a rank hangs"
    for comm in comms:
        comm.close()
    if failures:
        raise failures[0]
    return results


def _process(rank: int, num_ranks: int, uid: bytes, function: Callable[..., Any], args: Any, pipe: Any) -> None:
    try:
        with deepep.Comm(rank, num_ranks, deepep.UniqueId(uid)) as comm:
            pipe.send((True, function(comm, *args)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def processes(num_ranks: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """The same with a process per rank, which meet by a unique id. `function` is a module's, so that it pickles."""
    context = multiprocessing.get_context("spawn")
    uid = bytes(deepep.UniqueId.create())
    pipes, running = [], []
    for rank in range(num_ranks):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_process, args=(rank, num_ranks, uid, function, args, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        running.append(process)
    results = []
    for rank, pipe in enumerate(pipes):
        assert pipe.poll(TIMEOUT_S), f"rank {rank} hangs"
        try:
            ok, result = pipe.recv()
        except EOFError:
            running[rank].join()
            raise AssertionError(f"rank {rank} died with code {running[rank].exitcode}") from None
        assert ok, f"rank {rank}:\n{result}"
        results.append(result)
    for rank, process in enumerate(running):
        process.join(TIMEOUT_S)
        assert process.exitcode == 0, f"rank {rank} ended with code {process.exitcode}"
    return results
