"""What passing a tensor costs: by claim, by loopback TCP, by plain copy.

`python -m bench.cost.shared_memory` prints one JSON object for each size. Medians of 100, in ms, on
a 2-core VM (Linux 6.18); there and back, the receiver reading every word:

                                  4 KB  64 KB  256 KB  800 KB  1.6 MB   8 MB
    plain copy                   0.001  0.002   0.005   0.020   0.035  0.244
    put + open + check + release 0.014  0.017   0.021   0.040   0.056  0.363
    claim over loopback TCP       0.12   0.12    0.17    0.20    0.24   0.72
    bytes over loopback TCP       0.08   0.08    0.10    0.14    0.57   2.64

The loopback row is the least that any wire can cost: blocking sockets, a buffer made beforehand,
and no broker. Through a real nats-server 2.15 on the same host, request and reply, nats-py 2.16 on
uvloop (measured earlier, with another encoding of claims):

                       4 KB  32 KB  64 KB  128 KB  256 KB  800 KB  1.6 MB   8 MB
    claim in a message 0.34   0.36   0.36    0.37    0.39    0.44    0.46   0.84
    bytes in a message 0.22   0.25   0.40    0.41    1.00    2.33    5.01   23.3

So through the server a claim wins from 64 to 128 KB on. But one message in a process's own socket
(`swarm.samehost.host_socket`) holds 20 KB, and a claim always fits: with features of 64 KiB three
tiny stages took 1.1 ms instead of 2.0 by claims, and 1.7 times the requests/s with 16 in flight;
with 16 KiB, which fit as they are, 0.96 instead of 0.82 ms, and as many requests/s.
Hence `ring.MIN_BYTES`, 19 KiB. Opening a segment for the first time adds 0.1 to 0.5 ms, growing one
0.5 ms for each MB.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from swarm.samehost.memory.claim import Claim
from swarm.samehost.memory.reader import ClaimReader
from swarm.samehost.memory.ring import Ring

SIZES = (4 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 800 << 10, 1600 << 10, 8 << 20)
_FRAME = struct.Struct("<cI")


def measure(sizes: tuple[int, ...] = SIZES, rounds: int = 100) -> list[dict[str, float]]:
    """Medians in milliseconds for each size in bytes.

    `copy`: one memcpy into warm memory. `put_open_check`: both sides in one process, no message.
    `claim` and `tcp`: to another process and back, which reads every word of the tensor and
    answers one byte; what a message broker adds comes on top of both.

    Raises:
        RuntimeError: this host has no shared memory.
    """
    mesh = f"measure-{os.getpid()}"
    ring, reader = Ring(mesh), ClaimReader(mesh)
    ring.release(_put(ring, memoryview(bytes(2 * max(sizes)))))  # or the first ones would grow it
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            command = [sys.executable, "-m", "bench.cost.shared_memory", mesh, str(port)]
            with subprocess.Popen(command) as receiver, server.accept()[0] as wire:
                wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                rows = [_row(size, rounds, ring, reader, wire) for size in sizes]
                wire.shutdown(socket.SHUT_WR)
                receiver.wait(10)
        return rows
    finally:
        reader.close()
        ring.close()


def _row(
    size: int, rounds: int, ring: Ring, reader: ClaimReader, wire: socket.socket
) -> dict[str, float]:
    tensor = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
    part, target = tensor.data, np.empty_like(tensor)

    def local() -> None:
        claim = _put(ring, part)
        view = reader.open(claim)
        if not reader.check(claim) or len(view) != size:
            raise RuntimeError("a slot changed that nobody else writes")
        ring.release(claim)

    def by_claim() -> None:
        claim = _put(ring, part)
        message = claim.to_wire()
        wire.sendall(_FRAME.pack(b"c", len(message)) + message)
        _answer(wire)
        ring.release(claim)

    def by_tcp() -> None:
        wire.sendall(_FRAME.pack(b"t", size))
        wire.sendall(part)
        _answer(wire)

    return {
        "bytes": size,
        "copy": _median_ms(lambda: np.copyto(target, tensor), rounds),
        "put_open_check": _median_ms(local, rounds),
        "claim": _median_ms(by_claim, rounds),
        "tcp": _median_ms(by_tcp, rounds),
    }


def _put(ring: Ring, part: memoryview) -> Claim:
    claim = ring.put([part])
    if claim is None:
        raise RuntimeError(ring.reason or "the ring is full")
    return claim


def _answer(wire: socket.socket) -> None:
    if wire.recv(1) != b"k":
        raise RuntimeError("the receiver did not get the tensor whole")


def _median_ms(action: Callable[[], object], rounds: int) -> float:
    took = []
    for turn in range(rounds + 5):
        start = time.perf_counter()
        action()
        if turn >= 5:  # the first ones map pages
            took.append(time.perf_counter() - start)
    return round(median(took) * 1e3, 4)


def receive(mesh: str, port: int) -> None:
    """Serve the other end of `measure` until it hangs up."""
    reader = ClaimReader(mesh)
    buffer = bytearray(max(SIZES))
    with socket.create_connection(("127.0.0.1", port)) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while head := wire.recv(_FRAME.size, socket.MSG_WAITALL):
            kind, length = _FRAME.unpack(head)
            with memoryview(buffer)[:length] as view:
                wire.recv_into(view, length, socket.MSG_WAITALL)
                intact = _use(reader, bytes(view)) if kind == b"c" else _sum(view) >= 0
            wire.sendall(b"k" if intact else b"x")
    reader.close()


def _use(reader: ClaimReader, message: bytes) -> bool:
    claim = Claim.from_wire(message)
    _sum(reader.open(claim))
    return reader.check(claim)


def _sum(view: memoryview) -> int:
    return int(np.add.reduce(np.frombuffer(view, dtype=np.uint64)))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        receive(sys.argv[1], int(sys.argv[2]))
    else:
        for line in measure():
            print(json.dumps(line))
