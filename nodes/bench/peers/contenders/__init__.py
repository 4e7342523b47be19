"""The contenders: one module each, imported only where it runs.

A contender's module needs its own package and nothing of the others. The values are
``module:Class``, resolved in the client's process.
"""

from __future__ import annotations

_HERE = "nodes.bench.peers.contenders"

FLOOR = "inprocess"
"""The contender whose latency is subtracted: all stages in one process."""

CONTENDERS: dict[str, str] = {
    FLOOR: f"{_HERE}.inprocess:InProcess",
    "pyzmq": f"{_HERE}.pyzmq:PyZmq",
    "nats_core": f"{_HERE}.nats_core:NatsCore",
    "nats_jetstream": f"{_HERE}.nats_jetstream:NatsJetStream",
    "nats_pull": f"{_HERE}.nats_pull:NatsPull",
    "grpc_aio": f"{_HERE}.grpc_aio:GrpcAio",
    "mosec": f"{_HERE}.mosec:Mosec",
    "triton": f"{_HERE}.triton:Triton",
    "ray_compiled": f"{_HERE}.ray_compiled:RayCompiled",
    "ray_serve": f"{_HERE}.ray_serve:RayServe",
    "bentoml": f"{_HERE}.bentoml:BentoMl",
    "litserve": f"{_HERE}.litserve:LitServe",
}
