"""Triton: an ensemble of one Python model per stage, each in a process of its own.

The server binary and its Python backend come from the ``nvidia-pytriton`` wheel, which carries no
ONNX Runtime backend, so a stage runs ONNX Runtime inside a Python model. Tensors pass between
the server and the stages through shared memory; the client speaks HTTP with binary tensors.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from support.ports import free_port

from bench.rivals.contract import Unavailable
from bench.rivals.systems.http_contender import HttpContender
from bench.rivals.workload import Spec, Tensors, pack, unpack

TRITON_TYPES = {
    "float32": "FP32",
    "float16": "FP16",
    "int64": "INT64",
    "int32": "INT32",
    "uint8": "UINT8",
}
SHARED_MEMORY_BYTES = 64 * 1024 * 1024

MODEL_SOURCE = '''"""A stage as a model of Triton's Python backend."""
import sys

sys.path[:0] = {path!r}
import triton_python_backend_utils as pb
from bench.rivals.stage import Stage


class TritonPythonModel:
    def initialize(self, args):
        self.stage = Stage.load({directory!r}, {number})

    def execute(self, requests):
        responses = []
        for request in requests:
            tensors = {{
                spec.name: pb.get_input_tensor_by_name(request, spec.name).as_numpy()
                for spec in self.stage.inputs
            }}
            outputs = [pb.Tensor(name, array) for name, array in self.stage.run(tensors).items()]
            responses.append(pb.InferenceResponse(outputs))
        return responses
'''


class Triton(HttpContender):
    """The client posts to the ensemble; no model batches."""

    packages = ("pytriton", "onnxruntime")
    path = "/v2/models/chain/infer"
    health = "/v2/health/ready"

    def check(self) -> None:
        super().check()
        unknown = {s.dtype for specs in self.workload.inputs for s in specs} - set(TRITON_TYPES)
        if unknown:
            raise Unavailable(f"no Triton name here for {', '.join(sorted(unknown))}")
        if not _stub().exists():
            raise Unavailable(f"the wheel has no Python backend stub for {_version()}")
        try:
            subprocess.run(
                [str(_root() / "bin" / "tritonserver"), "--help"],
                capture_output=True,
                timeout=20,
                env={**os.environ, "LD_LIBRARY_PATH": _libraries()},
                check=False,
            )
        except OSError as error:
            raise Unavailable(f"the wheel's tritonserver does not run here: {error}") from error

    def launch(self) -> int:
        repository = self.scratch / "models"
        self._write_models(repository)
        port = free_port()
        backends = self._backends()
        command = [
            str(_root() / "bin" / "tritonserver"),
            f"--model-repository={repository}",
            f"--backend-directory={backends}",
            f"--backend-config=python,shm-default-byte-size={SHARED_MEMORY_BYTES}",
            f"--backend-config=python,shm-region-prefix-name=peer-{os.getpid()}-",
            "--http-address=127.0.0.1",
            f"--http-port={port}",
            "--allow-grpc=false",
            "--allow-metrics=false",
            "--log-info=false",
        ]
        environment = {
            "LD_LIBRARY_PATH": _libraries(),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHONHOME": sys.base_prefix,
        }
        self._processes.spawn("tritonserver", command, environment)
        return port

    async def open(self) -> None:
        await super().open()
        self._head = self._request_head()
        self._headers = {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(len(self._head)),
        }

    async def ask(self, inputs: Tensors) -> Tensors:
        assert self._client is not None
        payload = pack(inputs, self.workload.inputs[0])
        headers, data = await self._client.post(self.path, [self._head, payload], self._headers)
        length = int(headers["inference-header-content-length"])
        names = [output["name"] for output in json.loads(data[:length])["outputs"]]
        by_name = {spec.name: spec for spec in self.workload.outputs[-1]}
        return unpack(memoryview(data)[length:], [by_name[name] for name in names])

    def _request_head(self) -> bytes:
        inputs = [
            {
                "name": spec.name,
                "shape": list(spec.shape),
                "datatype": TRITON_TYPES[spec.dtype],
                "parameters": {"binary_data_size": spec.nbytes},
            }
            for spec in self.workload.inputs[0]
        ]
        return json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()

    def _backends(self) -> Path:
        """A backend folder with the stub of this interpreter's version in it."""
        target = self.scratch / "backends" / "python"
        target.mkdir(parents=True)
        for file in (_root() / "backends" / "python").iterdir():
            (target / file.name).symlink_to(file)
        (target / "triton_python_backend_stub").symlink_to(_stub())
        return target.parent

    def _write_models(self, repository: Path) -> None:
        workload = self.workload
        directory, path = str(workload.directory), [entry for entry in sys.path if entry]
        for index, (inputs, outputs) in enumerate(
            zip(workload.inputs, workload.outputs, strict=True)
        ):
            number = index + 1
            folder = repository / f"stage-{number}"
            (folder / "1").mkdir(parents=True)
            (folder / "1" / "model.py").write_text(
                MODEL_SOURCE.format(path=path, directory=directory, number=number)
            )
            config = {
                **_io(f"stage-{number}", inputs, outputs),
                "backend": "python",
                "instance_group": [{"kind": "KIND_CPU", "count": 1}],
            }
            (folder / "config.pbtxt").write_text(_text(config))
        steps = [
            {
                "model_name": f"stage-{index + 1}",
                "model_version": -1,
                "input_map": {spec.name: spec.name for spec in inputs},
                "output_map": {spec.name: spec.name for spec in outputs},
            }
            for index, (inputs, outputs) in enumerate(
                zip(workload.inputs, workload.outputs, strict=True)
            )
        ]
        folder = repository / "chain"
        (folder / "1").mkdir(parents=True)
        config = {
            **_io("chain", workload.inputs[0], workload.outputs[-1]),
            "platform": "ensemble",
            "ensemble_scheduling": {"step": steps},
        }
        (folder / "config.pbtxt").write_text(_text(config))


def _io(name: str, inputs: tuple[Spec, ...], outputs: tuple[Spec, ...]) -> dict[str, Any]:
    def entries(specs: tuple[Spec, ...]) -> list[dict[str, Any]]:
        return [
            {"name": s.name, "data_type": f"TYPE_{TRITON_TYPES[s.dtype]}", "dims": list(s.shape)}
            for s in specs
        ]

    return {"name": name, "max_batch_size": 0, "input": entries(inputs), "output": entries(outputs)}


def _text(config: dict[str, Any]) -> str:
    """The configuration in protobuf's text format."""
    from google.protobuf import json_format, text_format
    from tritonclient.grpc import model_config_pb2

    message = model_config_pb2.ModelConfig()
    return str(text_format.MessageToString(json_format.ParseDict(config, message)))


def _root() -> Path:
    found = importlib.util.find_spec("pytriton")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "tritonserver"


def _stub() -> Path:
    return _root() / "python_backend_stubs" / _version() / "triton_python_backend_stub"


def _version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _libraries() -> str:
    """The wheel's own libraries, and this interpreter's for the stub."""
    paths = [_root().parent.parent / "nvidia_pytriton.libs", sysconfig.get_config_var("LIBDIR")]
    return os.pathsep.join(str(path) for path in paths)
