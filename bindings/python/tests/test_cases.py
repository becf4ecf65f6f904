"""Public reports as tests; the number is the case's number in tests/README.md."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import deepep

CONFIG = deepep.BufferConfig(num_experts=4, num_topk=2, max_tokens=8, max_row_bytes=64, timeout_ms=20000)


def tokens() -> tuple[np.ndarray, np.ndarray]:
    return np.ones((8, 16), np.float32), np.array([[0, 3]] * 8, np.int64)


def script(text: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-X", "dev", "-c", textwrap.dedent(text), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_case_091_other_threads_run_while_a_dispatch_waits() -> None:
    comms = deepep.Comm.local(2)
    buffers = deepep.Buffer.local(comms, CONFIG)
    waited = [0.0]
    counter = [0]
    stop = threading.Event()

    handles = [buffer.handle() for buffer in buffers]

    def early() -> None:
        begin = time.monotonic()
        handles[0].dispatch(*tokens())
        waited[0] = time.monotonic() - begin

    def count() -> None:
        while not stop.is_set():
            counter[0] += 1

    threads = [threading.Thread(target=early), threading.Thread(target=count)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)  # the dispatch is waiting now
    before = counter[0]
    time.sleep(0.8)
    grown = counter[0] - before
    handles[1].dispatch(*tokens())
    stop.set()
    for thread in threads:
        thread.join()
    assert waited[0] > 0.9
    assert grown > 10000
    for one in (*handles, *buffers):
        one.close()


SETUP = """
    import gc, sys, threading, time
    import numpy as np
    import deepep
    config = deepep.BufferConfig(num_experts=4, num_topk=2, max_tokens=8, max_row_bytes=64, timeout_ms=20000)
    x, ids = np.ones((8, 16), np.float32), np.array([[0, 3]] * 8, np.int64)
"""

EXITS = {
    "buffer in a reference cycle": """
        class Node: pass
        node = Node()
        node.me, node.comm = node, deepep.Comm.local(1)[0]
        node.buffer = deepep.Buffer(node.comm, config)
        node.handle = node.buffer.handle()
        node.received = node.handle.dispatch(x, ids)   # rows stay open
        node.array = node.received.x.numpy()
    """,
    "collected cycle with open rows": """
        class Node: pass
        node = Node()
        node.me = node
        node.buffer = deepep.Buffer(deepep.Comm.local(1)[0], config)
        node.handle = node.buffer.handle()
        node.array = np.asarray(node.handle.dispatch(x, ids).x)
        del node
        gc.collect()
    """,
    "live globals": """
        comm = deepep.Comm.local(1)[0]
        buffer = deepep.Buffer(comm, config)
        handle = buffer.handle()
        received = handle.dispatch(x, ids)
        exported = np.from_dlpack(received.x)
    """,
    "a daemon thread waits inside a dispatch": """
        comms = deepep.Comm.local(2)
        buffers = deepep.Buffer.local(comms, config)
        handle = buffers[0].handle()
        threading.Thread(target=handle.dispatch, args=(x, ids), daemon=True).start()
        time.sleep(0.3)
    """,
}


@pytest.mark.parametrize("what", EXITS)
def test_case_092_interpreter_exit(what: str) -> None:
    process = script(textwrap.dedent(SETUP) + textwrap.dedent(EXITS[what]) + "\nprint('end', flush=True)\n")
    assert process.stdout is not None
    assert process.stdout.readline() == "end\n", process.communicate()
    begin = time.monotonic()
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert time.monotonic() - begin < 5
    assert "Fatal" not in errors and "Exception ignored" not in errors, errors


def test_case_092_a_rank_leaves_without_destroy_while_another_works() -> None:
    text = textwrap.dedent(SETUP) + textwrap.dedent("""
        rank = int(sys.argv[1])
        comm = deepep.Comm(rank, 2, deepep.UniqueId(bytes.fromhex(sys.argv[2])))
        buffer = deepep.Buffer(comm, config)
        handle = buffer.handle()
        received = handle.dispatch(x, ids)
        handle.combine(received.x)
        print("done", flush=True)
        if rank == 1:
            sys.stdin.readline()            # its last local work, while rank 0 goes
            received = received.topk_idx.numpy().sum()
            handle.close()
            buffer.close()
            comm.close()
    """)
    uid = bytes(deepep.UniqueId.create()).hex()
    processes = [script(text, str(rank), uid) for rank in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n", process.communicate()
    begin = time.monotonic()
    _, errors = processes[0].communicate(timeout=30)
    assert processes[0].returncode == 0, errors
    _, errors = processes[1].communicate("go\n", timeout=30)
    assert processes[1].returncode == 0, errors
    assert time.monotonic() - begin < 5
