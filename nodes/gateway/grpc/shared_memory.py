"""The methods by which clients of this host register their shared memory."""

from __future__ import annotations

from typing import Any

from nodes.gateway.call import Regions
from nodes.gateway.grpc.calls import Call, Method
from nodes.gateway.grpc.messages import message
from nodes.gateway.parameters import no_shared_memory


class SharedMemoryMethods:
    """regions: None where shared memory is off."""

    def __init__(self, regions: Regions | None) -> None:
        self._regions = regions

    def methods(self) -> dict[str, Method]:
        """By name."""
        return {
            "SystemSharedMemoryStatus": self._status,
            "SystemSharedMemoryRegister": self._register,
            "SystemSharedMemoryUnregister": self._unregister,
            "CudaSharedMemoryStatus": self._no_gpu_status,
            "CudaSharedMemoryUnregister": self._no_gpu_unregister,
        }

    @property
    def _allowed(self) -> Regions:
        if self._regions is None:
            raise no_shared_memory()
        return self._regions

    async def _status(self, request: Any, call: Call) -> Any:
        response = message("inference.SystemSharedMemoryStatusResponse")()
        for name, (key, offset, size) in self._allowed.registered(request.name).items():
            region = response.regions[name]
            region.name, region.key, region.offset, region.byte_size = name, key, offset, size
        return response

    async def _register(self, request: Any, call: Call) -> Any:
        self._allowed.register(request.name, request.key, request.offset, request.byte_size)
        return message("inference.SystemSharedMemoryRegisterResponse")()

    async def _unregister(self, request: Any, call: Call) -> Any:
        self._allowed.unregister(request.name)
        return message("inference.SystemSharedMemoryUnregisterResponse")()

    # Clients forget all regions of both kinds before they register one of either.

    async def _no_gpu_status(self, request: Any, call: Call) -> Any:
        return message("inference.CudaSharedMemoryStatusResponse")()

    async def _no_gpu_unregister(self, request: Any, call: Call) -> Any:
        return message("inference.CudaSharedMemoryUnregisterResponse")()
