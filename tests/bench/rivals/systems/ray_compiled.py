"""Ray compiled graph: one actor per stage, shared-memory channels between them.

As its guide advises: buffers sized for the largest message, in-flight executions bounded by what
the caller keeps under way, results taken in order.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

from bench.rivals.contract import REQUEST_TIMEOUT, Contender
from bench.rivals.systems.ray_cluster import RayCluster
from bench.rivals.workload import Tensors, Workload


class RayCompiled(Contender):
    """The client compiles the graph and executes it."""

    packages = ("ray", "onnxruntime")

    def __init__(self, workload: Workload, scratch: Path) -> None:
        super().__init__(workload, scratch)
        self._cluster = RayCluster(scratch)
        self._ray: Any = None
        self._graph: Any = None

    def start(self) -> None:
        self._ray = self._cluster.start(self.workload.stages, RAY_CGRAPH_teardown_timeout="5")
        from ray.dag import InputNode

        actor = self._ray.remote(num_cpus=1)(_Stage)
        directory = str(self.workload.directory)
        self._actors = [actor.remote(directory, n + 1) for n in range(self.workload.stages)]
        with InputNode() as node:
            for stage in self._actors:
                node = stage.run.bind(node)
        self._graph = node.experimental_compile(
            _buffer_size_bytes=self.workload.largest + 65536,
            _max_inflight_executions=max(16, self.workload.in_flight),
            _submit_timeout=REQUEST_TIMEOUT,
        )

    def request(self, inputs: Tensors) -> Tensors:
        return self._result(self._graph.execute(inputs))

    def _result(self, reference: Any) -> Tensors:
        """A copy: the channel's buffer belongs to the next message once the result is taken."""
        outputs = self._ray.get(reference, timeout=REQUEST_TIMEOUT)
        return {name: array.copy() for name, array in outputs.items()}

    def concurrent(self, inputs: Tensors, in_flight: int, total: int) -> list[Tensors]:
        window: deque[Any] = deque()
        answers = []
        for _ in range(total):
            if len(window) == in_flight:
                answers.append(self._result(window.popleft()))
            window.append(self._graph.execute(inputs))
        answers += [self._result(reference) for reference in window]
        return answers

    def stop(self) -> None:
        try:
            if self._graph is not None:
                self._graph.teardown(kill_actors=True)
                self._graph = None
        finally:
            self._cluster.stop()


class _Stage:
    """The actor: a process with one stage."""

    def __init__(self, directory: str, number: int) -> None:
        from bench.rivals.stage import Stage

        self._stage = Stage.load(directory, number)

    def run(self, tensors: Tensors) -> Tensors:
        return self._stage.run(tensors)
