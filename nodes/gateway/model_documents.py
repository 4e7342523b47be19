"""What clients of the Open Inference Protocol and of Triton read about models, as plain data: the
same fields in HTTP's JSON and in gRPC's messages."""

from __future__ import annotations

from typing import Any

import swarm
from nodes.gateway.models import Listed
from swarm.model import ModelInfo, Spec

PLATFORM = "onnxruntime_onnx"  # Triton's word for a model that came as ONNX
EXTENSIONS = ("binary_tensor_data", "model_repository", "model_configuration", "statistics")
SHM_EXTENSION = "system_shared_memory"


def server_metadata(name: str, shm: bool) -> dict[str, Any]:
    """Of `GET v2`. shm: whether clients may register shared memory."""
    return {
        "name": name,
        "version": swarm.__version__,
        "extensions": [*EXTENSIONS, *([SHM_EXTENSION] if shm else [])],
    }


def model_metadata(info: ModelInfo, versions: list[str]) -> dict[str, Any]:
    """Of `GET v2/models/M`; -1 in a shape stands for any size."""
    return {
        "name": info.model,
        "versions": versions,
        "platform": PLATFORM,
        "inputs": [tensor(spec) for spec in info.inputs],
        "outputs": [tensor(spec) for spec in info.outputs],
    }


def tensor(spec: Spec) -> dict[str, Any]:
    """An input or an output."""
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def model_config(info: ModelInfo) -> dict[str, Any]:
    """Triton's model configuration, as far as tools that measure need it. max_batch_size is 0: the
    shapes are whole, and a client's batch is one request of the mesh."""
    return {
        "name": info.model,
        "platform": PLATFORM,
        "backend": "onnxruntime",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 0,
        "input": [_config_tensor(spec) for spec in info.inputs],
        "output": [_config_tensor(spec) for spec in info.outputs],
        "instance_group": [],
        "default_model_filename": "",
        "parameters": {},
        "model_warmup": [],
    }


def _config_tensor(spec: Spec) -> dict[str, Any]:
    datatype = "TYPE_" + spec.datatype
    return {"name": spec.name, "data_type": datatype, "dims": list(spec.shape)}


def regions(registered: dict[str, tuple[str, int, int]]) -> list[dict[str, Any]]:
    """Of the status of shared memory."""
    return [
        {"name": name, "key": key, "offset": offset, "byte_size": size}
        for name, (key, offset, size) in sorted(registered.items())
    ]


def repository_index(listed: list[Listed], only_ready: bool = False) -> list[dict[str, Any]]:
    """Of `POST v2/repository/index`."""
    return [
        {
            "name": each.name,
            "version": each.version,
            "state": "READY" if each.ready else "UNAVAILABLE",
            "reason": each.reason,
        }
        for each in listed
        if each.ready or not only_ready
    ]
