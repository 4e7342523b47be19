"""BentoML: one service per stage, each depending on the next, each in a process of its own.

As its documentation advises for distributed services: ``bentoml.depends``, asynchronous APIs that
await the next service, one worker per service, metrics and access logs off. Between services
BentoML pickles; the client posts raw bytes.
"""

import os
import sys
from typing import Any

from nodes.bench.peers.contenders.http_common import HttpContender
from nodes.bench.peers.stage import Stage
from nodes.bench.peers.workload import Workload

WORKLOAD = "PEERS_WORKLOAD"
CONFIGURATION: dict[str, Any] = {
    "workers": 1,
    "traffic": {"timeout": 30},
    "metrics": {"enabled": False},
    "logging": {"access": {"enabled": False}},
    # By default the session between two services is replaced after 100 requests, and those under
    # way on it then fail with "Server disconnected" (BentoML #5540).
    "runner_connection": {"max_requests": 1_000_000_000, "max_age": 86400.0},
}


class BentoMl(HttpContender):
    """The client posts to stage 1's service."""

    packages = ("bentoml", "onnxruntime")
    path = "/run"
    health = "/readyz"

    def launch(self) -> int:
        port = self.port()
        command = [sys.executable, "-m", "bentoml", "serve", f"{__name__}:service"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        self._processes.spawn(
            "bentoml",
            command,
            {
                WORKLOAD: str(self.workload.directory),
                "BENTOML_HOME": str(self.scratch / "home"),
                "BENTOML_DO_NOT_TRACK": "true",
                "TMPDIR": str(self.scratch),
            },
        )
        return port


def _services(directory: str) -> Any:
    """The first of the chained services."""
    import bentoml

    following: Any = None
    for number in range(Workload.load(directory).stages, 0, -1):
        following = bentoml.service(name=f"stage-{number}", **CONFIGURATION)(
            _stage_class(bentoml, directory, number, following)
        )
    return following


def _stage_class(bentoml: Any, directory: str, number: int, next_service: Any) -> type:
    class StageService:
        """One stage; the next one is called through BentoML's proxy."""

        following = None if next_service is None else bentoml.depends(next_service)

        def __init__(self) -> None:
            self.model = Stage.load(directory, number)

        @bentoml.api  # type: ignore[untyped-decorator]
        async def run(self, data: bytes, /) -> bytes:
            output = bytes(self.model.run_bytes(data))
            if self.following is None:
                return output
            answer: bytes = await self.following.run(output)
            return answer

    return StageService


if WORKLOAD in os.environ:
    service = _services(os.environ[WORKLOAD])
