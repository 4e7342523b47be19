"""Ray Serve: one deployment per stage, composed by handles; the client uses a handle too.

As its performance guide advises: the throughput-optimized mode, which puts user code and the
router on the replica's own loop, calls replicas by gRPC and buffers the request log; ``async``
methods; enough ongoing requests for what the client keeps under way. No HTTP proxy is started.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.rivals.contract import AsyncContender
from bench.rivals.systems.ray_cluster import RayCluster
from bench.rivals.workload import Tensors, Workload

TUNING = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # Handles only: there is no HTTP ingress to serve directly.
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
}
APPLICATION = "peers"


class RayServe(AsyncContender):
    """Stage 1's handle is called; each stage awaits the next one's handle."""

    packages = ("ray", "onnxruntime")
    use_uvloop = False

    def __init__(self, workload: Workload, scratch: Path) -> None:
        super().__init__(workload, scratch)
        self._cluster = RayCluster(scratch)
        self._handle: Any = None

    def start(self) -> None:
        self._cluster.start(self.workload.stages, **TUNING)
        from ray import serve

        serve.start(http_options={"location": "NoServer"})
        ongoing = 2 * max(16, self.workload.in_flight)
        directory, following = str(self.workload.directory), None
        for number in range(self.workload.stages, 0, -1):
            deployment = serve.deployment(
                _Stage,
                name=f"stage-{number}",
                num_replicas=1,
                max_ongoing_requests=ongoing,
                ray_actor_options={"num_cpus": 1},
            )
            following = deployment.bind(directory, number, following)
        serve.run(following, name=APPLICATION, route_prefix=None)
        super().start()

    async def open(self) -> None:
        from ray import serve

        # A handle of its own for this loop: in this mode the router runs on the caller's loop.
        self._handle = serve.get_app_handle(APPLICATION)

    async def ask(self, inputs: Tensors) -> Tensors:
        outputs: Tensors = await self._handle.remote(inputs)
        return outputs

    async def close(self) -> None:
        from ray import serve

        # On the loop that the handle's router runs on.
        await serve.shutdown_async()

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            self._cluster.stop()


class _Stage:
    """A deployment's replica: a process with one stage."""

    def __init__(self, directory: str, number: int, following: Any) -> None:
        from bench.rivals.stage import Stage

        self._stage = Stage.load(directory, number)
        self._following = following

    async def __call__(self, tensors: Tensors) -> Tensors:
        outputs = self._stage.run(tensors)
        if self._following is None:
            return outputs
        answer: Tensors = await self._following.remote(outputs)
        return answer
