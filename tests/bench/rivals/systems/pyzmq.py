"""PyZMQ: PUSH/PULL from stage to stage over TCP on the loopback.

As its guide advises: no copies (``copy=False``), one context per process, one I/O thread, blocking
receives. There is no acknowledgement and no redelivery: this is a transport and nothing else.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

from bench.rivals.contract import REQUEST_TIMEOUT, Pipelined
from bench.rivals.processes import announce
from bench.rivals.stage import Stage
from bench.rivals.workload import Tensors, Workload, pack, unpack

LOOPBACK = "tcp://127.0.0.1"


class PyZmq(Pipelined):
    """The client pushes to stage 1 and pulls from the last stage."""

    packages = ("zmq", "onnxruntime")
    install = "pip install 'pyzmq>=26,<28'"

    def __init__(self, workload: Workload, scratch: Path) -> None:
        super().__init__(workload, scratch)
        self._ids = itertools.count()
        self._context: Any = None

    def start(self) -> None:
        import zmq

        self._context = zmq.Context()
        self._results = self._context.socket(zmq.PULL)
        self._results.setsockopt(zmq.RCVTIMEO, int(1000 * REQUEST_TIMEOUT))
        address = f"{LOOPBACK}:{self._results.bind_to_random_port(LOOPBACK)}"
        for number in range(self.workload.stages, 0, -1):
            address = self._processes.spawn_module(
                f"stage-{number}", __name__, str(self.workload.directory), str(number), address
            )
        self._requests = self._context.socket(zmq.PUSH)
        self._requests.setsockopt(zmq.SNDTIMEO, int(1000 * REQUEST_TIMEOUT))
        self._requests.connect(address)

    def _send(self, inputs: Tensors) -> bytes:
        token = next(self._ids).to_bytes(8, "little")
        payload = pack(inputs, self.workload.inputs[0])
        self._requests.send_multipart([token, payload], copy=False)
        return token

    def _receive(self) -> tuple[bytes, Tensors]:
        token, payload = self._results.recv_multipart(copy=False)
        return token.bytes, unpack(payload.buffer, self.workload.outputs[-1])

    def stop(self) -> None:
        if self._context is not None:
            self._context.destroy(linger=0)
        self._processes.stop()


def serve(ready: str, directory: str, number: str, downstream: str) -> None:
    """A stage's process: pull, run, push, for ever."""
    import zmq

    stage = Stage.load(directory, int(number))
    context = zmq.Context()
    source, target = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    port = source.bind_to_random_port(LOOPBACK)
    target.connect(downstream)
    announce(ready, f"{LOOPBACK}:{port}")
    while True:
        token, payload = source.recv_multipart(copy=False)
        target.send_multipart([token, stage.run_bytes(payload.buffer)], copy=False)


if __name__ == "__main__":
    serve(*sys.argv[1:])
