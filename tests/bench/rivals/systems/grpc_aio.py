"""gRPC on asyncio: each stage calls the next one and passes its answer back.

Generic handlers on raw bytes (no message classes to copy into), one lasting channel per process, no
limit on message size.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from bench.rivals.contract import AsyncContender
from bench.rivals.processes import announce
from bench.rivals.stage import Stage
from bench.rivals.workload import Tensors, Workload, pack, unpack

NO_SIZE_LIMITS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
SERVICE, METHOD = "peers.Stage", "Run"
NO_NEXT = "-"


class GrpcAio(AsyncContender):
    """The client calls stage 1."""

    packages = ("grpc", "onnxruntime")
    use_uvloop = False

    def __init__(self, workload: Workload, scratch: Path) -> None:
        super().__init__(workload, scratch)
        self._address = NO_NEXT
        self._channel: Any = None

    def start(self) -> None:
        for number in range(self.workload.stages, 0, -1):
            self._address = self._processes.spawn_module(
                f"stage-{number}",
                __name__,
                str(self.workload.directory),
                str(number),
                self._address,
            )
        super().start()

    async def open(self) -> None:
        import grpc

        self._channel = grpc.aio.insecure_channel(self._address, options=NO_SIZE_LIMITS)
        self._call = self._channel.unary_unary(f"/{SERVICE}/{METHOD}")

    async def ask(self, inputs: Tensors) -> Tensors:
        payload = bytes(pack(inputs, self.workload.inputs[0]))
        return unpack(await self._call(payload), self.workload.outputs[-1])

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()


async def serve(ready: str, directory: str, number: str, following: str) -> None:
    """A stage's process; runs until it is ended."""
    import grpc

    stage = Stage.load(directory, int(number))
    forward: Any = None
    if following != NO_NEXT:
        channel = grpc.aio.insecure_channel(following, options=NO_SIZE_LIMITS)
        forward = channel.unary_unary(f"/{SERVICE}/{METHOD}")

    async def run(request: bytes, context: Any) -> bytes:
        data = bytes(stage.run_bytes(request))
        return data if forward is None else await forward(data)

    server = grpc.aio.server(options=NO_SIZE_LIMITS)
    handler = grpc.unary_unary_rpc_method_handler(run)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    announce(ready, f"127.0.0.1:{port}")
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
