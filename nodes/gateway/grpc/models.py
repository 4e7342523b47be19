"""The methods about the server, its models, and the shared memory of clients."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.json_format import ParseDict

from nodes.gateway import model_documents as documents
from nodes.gateway.grpc.calls import Call, Method
from nodes.gateway.grpc.messages import message
from nodes.gateway.models import Models
from nodes.gateway.parameters import no_shared_memory
from nodes.gateway.shared_memory import Regions
from nodes.gateway.statistics import Statistics, empty_document

LEFT_OUT = {
    "RepositoryModelLoad": "models are loaded by `swarm model push` and `swarm model promote`",
    "RepositoryModelUnload": "models are taken away by `swarm model remove`",
    "CudaSharedMemoryRegister": "CUDA shared memory is not offered: use system shared memory",
    "TraceSetting": "trace settings are not offered: nodes trace by their own settings",
    "LogSettings": "log settings are not offered: nodes log by their own settings",
}
"""Methods of Triton that the gateway has no answer to, and why."""


class ModelMethods:
    """name: the server's, in its metadata. regions: None where shared memory is off."""

    def __init__(
        self, models: Models, statistics: Statistics, name: str, regions: Regions | None
    ) -> None:
        self._models = models
        self._statistics = statistics
        self._regions = regions
        self._metadata = documents.server_metadata(name, regions is not None)

    def methods(self) -> dict[str, Method]:
        """By name."""
        return {
            "ServerMetadata": self._server_metadata,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
            "SystemSharedMemoryStatus": self._memory_status,
            "SystemSharedMemoryRegister": self._memory_register,
            "SystemSharedMemoryUnregister": self._memory_unregister,
            # Clients forget all regions of both kinds before they register one of either.
            "CudaSharedMemoryStatus": _nothing("CudaSharedMemoryStatus"),
            "CudaSharedMemoryUnregister": _nothing("CudaSharedMemoryUnregister"),
        }

    async def _server_metadata(self, request: Any, call: Call) -> Any:
        return _filled("ServerMetadataResponse", self._metadata)

    async def _model_ready(self, request: Any, call: Call) -> Any:
        ready = await self._models.is_ready(request.name, request.version)
        return _filled("ModelReadyResponse", {"ready": ready})

    async def _model_metadata(self, request: Any, call: Call) -> Any:
        info = await self._models.describe(request.name, request.version)
        versions = await self._models.versions(info.model)
        return _filled("ModelMetadataResponse", documents.model_metadata(info, versions))

    async def _model_config(self, request: Any, call: Call) -> Any:
        info = await self._models.describe(request.name, request.version)
        return _filled("ModelConfigResponse", {"config": documents.model_config(info)})

    async def _model_statistics(self, request: Any, call: Call) -> Any:
        found = self._statistics.documents(request.name, request.version)
        if request.name and not found:
            info = await self._models.describe(request.name, request.version)
            found = [empty_document(info.model, info.version)]
        return _filled("ModelStatisticsResponse", {"model_stats": found})

    async def _repository_index(self, request: Any, call: Call) -> Any:
        listed = await self._models.listed()
        index = documents.repository_index(listed, only_ready=request.ready)
        return _filled("RepositoryIndexResponse", {"models": index})

    @property
    def _allowed(self) -> Regions:
        if self._regions is None:
            raise no_shared_memory()
        return self._regions

    async def _memory_status(self, request: Any, call: Call) -> Any:
        found = documents.regions(self._allowed.registered(request.name))
        known = {each["name"]: each for each in found}
        return _filled("SystemSharedMemoryStatusResponse", {"regions": known})

    async def _memory_register(self, request: Any, call: Call) -> Any:
        self._allowed.register(request.name, request.key, request.offset, request.byte_size)
        return _filled("SystemSharedMemoryRegisterResponse", {})

    async def _memory_unregister(self, request: Any, call: Call) -> Any:
        self._allowed.unregister(request.name)
        return _filled("SystemSharedMemoryUnregisterResponse", {})


def _nothing(method: str) -> Method:
    async def answer(request: Any, call: Call) -> Any:
        return _filled(f"{method}Response", {})

    return answer


def _filled(name: str, document: dict[str, Any]) -> Any:
    """A message of the document that HTTP's clients get: fields that gRPC lacks are left out."""
    return ParseDict(document, message(f"inference.{name}")(), ignore_unknown_fields=True)


def not_offered() -> dict[str, Any]:
    """Handlers that answer `UNIMPLEMENTED`, in a line, by the names of their methods."""

    def handler(text: str) -> Any:
        async def refuse(request: bytes, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, text)

        return grpc.unary_unary_rpc_method_handler(refuse)

    return {name: handler(text) for name, text in LEFT_OUT.items()}
