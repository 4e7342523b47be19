"""LitServe: one server per stage, each awaiting the next one from its worker process.

LitServe has no pipeline of its own across servers. As its documentation advises: the fast queue
(ZeroMQ instead of a managed queue) between API process and worker, asynchronous hooks so that a
worker keeps serving while the next stage works, raw bytes instead of JSON.
"""

# No postponed annotations here: LitServe reads the types of the hooks' parameters.
import sys
from typing import Annotated, Any

from nodes.bench.peers.base import START_TIMEOUT
from nodes.bench.peers.contenders.http_common import OCTETS, HttpContender
from nodes.bench.peers.http_client import HttpClient
from nodes.bench.peers.processes import accepts
from nodes.bench.peers.stage import Stage

PATH = "/predict"


class LitServe(HttpContender):
    """The client posts to stage 1's server."""

    packages = ("litserve", "onnxruntime")
    path = PATH
    health = "/health"

    def launch(self) -> int:
        following = 0
        for number in range(self.workload.stages, 0, -1):
            port, name = self.port(), f"stage-{number}"
            command = [sys.executable, "-m", __name__, str(self.workload.directory)]
            self._processes.spawn(name, [*command, str(number), str(port), str(following)])
            self._processes.wait(lambda port=port: accepts(port), START_TIMEOUT, name)  # type: ignore[misc]
            following = port
        return following


def _api_class() -> Any:
    import litserve
    from fastapi import Body, Response

    class StageApi(litserve.LitAPI):  # type: ignore[misc,unused-ignore]
        """The stage as LitServe's hooks; the attributes travel to the worker process."""

        workload = ""
        number = 0
        following = 0

        def setup(self, device: str) -> None:
            self.model = Stage.load(self.workload, self.number)
            self.client = HttpClient(self.following) if self.following else None

        async def decode_request(self, request: Annotated[bytes, Body()]) -> bytes:
            return request

        async def predict(self, data: bytes) -> Any:
            output = self.model.run_bytes(data)
            if self.client is None:
                return bytes(output)
            return (await self.client.post(PATH, [output], OCTETS))[1]

        async def encode_response(self, output: bytes) -> Response:
            return Response(content=output, media_type="application/octet-stream")

    # The class is built where LitServe is installed, yet its processes unpickle it by name.
    StageApi.__qualname__ = "StageApi"
    return StageApi


def serve(directory: str, number: int, port: int, following: int) -> None:
    """One stage's server: an API process and a worker process."""
    import litserve

    api = globals()["StageApi"](enable_async=True)
    api.workload, api.number, api.following = directory, number, following
    server = litserve.LitServer(api, accelerator="cpu", fast_queue=True, timeout=30)
    server.run(
        host="127.0.0.1",
        port=port,
        num_api_servers=1,
        log_level="error",
        generate_client_file=False,
        pretty_logs=False,
    )


if __name__ in ("__main__", "__mp_main__"):
    StageApi = _api_class()

if __name__ == "__main__":
    serve(sys.argv[1], *(int(argument) for argument in sys.argv[2:5]))
