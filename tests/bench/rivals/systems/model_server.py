"""One ONNX Runtime session behind a server of models, in an environment that has that server.

    python -m bench.rivals.systems.model_server mosec|ray PORT MODEL.onnx

It takes one FP32 tensor [1, n] as bare bytes by POST, and gives another one back. Mosec's guide and
Ray Serve's for low latency are followed: bytes are passed through, one worker, no batches.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

MODEL = "RIVAL_MODEL"  # in the environment of workers: the model's file
LARGEST = 16 << 20  # bytes of a request
MOST_AT_A_TIME = 32  # requests


class Session:
    """The model, on one thread."""

    def __init__(self, file: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        providers = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(file, options, providers=providers)

    def run(self, data: bytes) -> bytes:
        x = np.frombuffer(data, np.float32).reshape(1, -1)
        (y,) = self._session.run(None, {"x": x})
        return bytes(y.tobytes())


def _mosec_worker() -> Any:
    from mosec import Worker

    class MosecWorker(Worker):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            self.session = Session(os.environ[MODEL])

        def forward(self, data: Any) -> Any:
            return self.session.run(data)

        def deserialize(self, data: bytes) -> bytes:
            return data

        def serialize(self, data: Any) -> bytes:
            return bytes(data)

    # The class is made where mosec is installed, yet its worker processes look for it by name.
    MosecWorker.__qualname__ = "MosecWorker"
    return MosecWorker


def mosec(port: str, file: str) -> None:
    """Serve until SIGTERM."""
    from mosec import Server

    sys.argv[1:] = ["--address", "127.0.0.1", "--port", port, "--timeout", "30000"]
    sys.argv += ["--log-level", "error", "--max-request-size", str(LARGEST)]
    server = Server()
    variables = {MODEL: file, "OMP_NUM_THREADS": "1"}
    server.append_worker(globals()["MosecWorker"], num=1, env=[variables], timeout=30)
    server.run()


def ray(port: str, file: str) -> None:
    """Serve until SIGTERM."""
    from bench.rivals.systems.ray_cluster import RayCluster

    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    cluster = RayCluster(Path.cwd())  # a folder of who started it, and removes it
    try:
        cluster.start(2, RAY_SERVE_THROUGHPUT_OPTIMIZED="1")
        from ray import serve
        from starlette.responses import Response

        class Model:
            def __init__(self, file: str) -> None:
                self.session = Session(file)

            async def __call__(self, request: Any) -> Any:
                return Response(self.session.run(await request.body()))

        serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
        made = serve.deployment(
            Model, max_ongoing_requests=MOST_AT_A_TIME, ray_actor_options={"num_cpus": 1}
        )
        serve.run(made.bind(file), name="rival", route_prefix="/")
        ended.wait()
        serve.shutdown()
    finally:
        cluster.stop()


if __name__ == "__mp_main__" or (__name__ == "__main__" and sys.argv[1] == "mosec"):
    MosecWorker = _mosec_worker()

if __name__ == "__main__":
    {"mosec": mosec, "ray": ray}[sys.argv[1]](*sys.argv[2:4])
