"""Zenoh, peer to peer: each process publishes to the next one over TCP on the loopback.

A subscriber's callback runs in a thread of Zenoh and only puts the sample into a queue; one worker
runs the stage and publishes its result. As its documentation advises for low latency, publishers
are declared once and are *express* (no batching). A publisher blocks instead of dropping where a
queue is full. The rest is its default, shared memory for payloads above 3 KB included. There is no
router, no scouting, no storage and no acknowledgement of the work: this is a transport and nothing
else.
"""

from __future__ import annotations

import itertools
import json
import queue
import sys
from pathlib import Path
from typing import Any

from support.ports import free_port

from bench.rivals.contract import REQUEST_TIMEOUT, START_TIMEOUT, Pipelined
from bench.rivals.processes import announce, wait_until
from bench.rivals.stage import Stage
from bench.rivals.workload import Tensors, Workload, pack, unpack


class Zenoh(Pipelined):
    """The client publishes to stage 1 and subscribes to what the last stage publishes."""

    packages = ("zenoh", "onnxruntime")
    install = "pip install 'eclipse-zenoh>=1.4,<2'"

    def __init__(self, workload: Workload, scratch: Path) -> None:
        super().__init__(workload, scratch)
        self._ids = itertools.count()
        self._link: _Link | None = None

    def start(self) -> None:
        stages = self.workload.stages
        ports = [free_port() for _ in range(stages + 1)]  # the client's, then those of the stages
        self._link = _Link(ports[0], ports[1], key(stages + 1), key(1))
        for number in range(stages, 0, -1):
            following = ports[number + 1] if number < stages else ports[0]
            self._processes.spawn_module(
                f"stage-{number}",
                __name__,
                str(self.workload.directory),
                str(number),
                str(ports[number]),
                str(following),
            )
        self._link.wait_for_the_next()

    def _send(self, inputs: Tensors) -> bytes:
        assert self._link is not None
        token = next(self._ids).to_bytes(8, "little")
        self._link.send(token, pack(inputs, self.workload.inputs[0]))
        return token

    def _receive(self) -> tuple[bytes, Tensors]:
        assert self._link is not None
        token, payload = self._link.receive(REQUEST_TIMEOUT)
        return token, unpack(payload, self.workload.outputs[-1])

    def stop(self) -> None:
        try:
            if self._link is not None:
                self._link.close()
                self._link = None
        finally:
            self._processes.stop()


class _Link:
    """A session with one subscriber, whose samples wait in a queue, and one publisher.

    own, following: the ports to listen at and to connect to. source, target: the keys to subscribe
    to and to publish to.
    """

    def __init__(self, own: int, following: int, source: str, target: str) -> None:
        import zenoh

        self._arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._session: Any = zenoh.open(zenoh.Config.from_json5(configuration(own, following)))
        self._subscriber = self._session.declare_subscriber(source, self._arrived.put)
        self._publisher = self._session.declare_publisher(
            target, congestion_control=zenoh.CongestionControl.BLOCK, express=True
        )

    def wait_for_the_next(self) -> None:
        """Wait until the subscriber of the next process is known: before, samples are dropped."""
        wait_until(lambda: bool(self._matching()), START_TIMEOUT, "the next stage's subscriber")

    def _matching(self) -> bool:
        status: Any = self._publisher.matching_status
        return bool(getattr(status, "matching", status))

    def send(self, token: bytes, payload: bytes | memoryview) -> None:
        """Publish a payload under the token of its request."""
        self._publisher.put(bytes(payload), attachment=token)

    def receive(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """The next token and payload; ``queue.Empty`` after `timeout` seconds."""
        sample = self._arrived.get(timeout=timeout)
        return sample.attachment.to_bytes(), sample.payload.to_bytes()

    def close(self) -> None:
        """End the session, and with it its threads."""
        self._session.close()


def key(stage: int) -> str:
    """The key under which the input of a stage is published."""
    return f"peers/stage/{stage}"


def configuration(own: int, following: int) -> str:
    """A peer that listens at one port of the loopback, knows one other, and looks for nobody."""
    return json.dumps(
        {
            "mode": "peer",
            "listen": {"endpoints": [f"tcp/127.0.0.1:{own}"]},
            "connect": {
                "endpoints": [f"tcp/127.0.0.1:{following}"],
                # The next process may start later.
                "timeout_ms": -1,
                "exit_on_failure": False,
                "retry": {
                    "period_init_ms": 50,
                    "period_max_ms": 200,
                    "period_increase_factor": 1.5,
                },
            },
            "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        }
    )


def serve(ready: str, directory: str, number: str, own: str, following: str) -> None:
    """A stage's process: take from the queue, run, publish, for ever."""
    stage = Stage.load(directory, int(number))
    link = _Link(int(own), int(following), key(int(number)), key(int(number) + 1))
    link.wait_for_the_next()
    announce(ready)
    while True:
        token, payload = link.receive()
        link.send(token, stage.run_bytes(payload))


if __name__ == "__main__":
    serve(*sys.argv[1:])
