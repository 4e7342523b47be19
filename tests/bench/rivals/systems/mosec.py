"""Mosec: one server, one worker process per stage, its controller between them.

The pipeline is Mosec's own. Between stages it moves bytes over Unix sockets; the serialization
hooks pass the raw tensor bytes through instead of pickling arrays.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from support.ports import free_port

from bench.rivals.stage import Stage
from bench.rivals.systems.http_contender import HttpContender

WORKLOAD, NUMBER = "PEERS_WORKLOAD", "PEERS_STAGE"


class Mosec(HttpContender):
    """The client posts to the server's HTTP endpoint."""

    packages = ("mosec", "onnxruntime")
    path = "/inference"

    def launch(self) -> int:
        port = free_port()
        command = [sys.executable, "-m", __name__, "--address", "127.0.0.1", "--port", str(port)]
        command += ["--timeout", "30000", "--log-level", "error"]
        command += ["--max-request-size", str(2 * self.workload.largest + 1024)]
        self._processes.spawn(
            "mosec", command, {WORKLOAD: str(self.workload.directory), "TMPDIR": str(self.scratch)}
        )
        return port


def _worker_class() -> Any:
    from mosec import Worker

    class PipelineStage(Worker):  # type: ignore[misc,unused-ignore]
        """The environment names the stage that this worker runs."""

        def __init__(self) -> None:
            self.model = Stage.load(os.environ[WORKLOAD], int(os.environ[NUMBER]))

        def forward(self, data: Any) -> Any:
            return self.model.run_bytes(data)

        def deserialize(self, data: bytes) -> bytes:
            return data

        def serialize(self, data: Any) -> bytes:
            return bytes(data)

        def serialize_ipc(self, data: Any) -> bytes:
            return bytes(data)

        def deserialize_ipc(self, data: bytes) -> bytes:
            return data

    # The class is built where Mosec is installed, yet the worker processes unpickle it by name.
    PipelineStage.__qualname__ = "PipelineStage"
    return PipelineStage


def serve() -> None:
    """The server's process: as many stages as the workload has."""
    from mosec import Server

    from bench.rivals.workload import Workload

    server = Server()
    for number in range(Workload.load(os.environ[WORKLOAD]).stages):
        environment = {NUMBER: str(number + 1), "OMP_NUM_THREADS": "1"}
        server.append_worker(globals()["PipelineStage"], num=1, env=[environment], timeout=30)
    server.run()


if __name__ in ("__main__", "__mp_main__"):
    PipelineStage = _worker_class()

if __name__ == "__main__":
    serve()
