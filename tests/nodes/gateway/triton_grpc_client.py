"""A program that drives a server by tritonclient's gRPC client, and prints a report.

    python triton_grpc_client.py ADDRESS MODEL FILE.npz [HTTP_ADDRESS]

FILE has the model's inputs. With the address of an HTTP server, tensors go through shared memory
over both protocols. The report is one JSON object: outputs by the way that they came.
"""

from __future__ import annotations

import asyncio
import json
import queue
import secrets
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import np_to_triton_dtype

IN_STREAM = 20  # requests


def tensors(kind: Any, inputs: dict[str, np.ndarray]) -> list[Any]:
    """kind: tritonclient's module."""
    made = []
    for name, array in inputs.items():
        tensor = kind.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def arrays(answer: Any, names: list[str]) -> dict[str, Any]:
    return {name: answer.as_numpy(name).tolist() for name in names}


def unary(client: Any, model: str, inputs: dict[str, np.ndarray], names: list[str]) -> Any:
    given = tensors(grpc, inputs)
    later: queue.Queue[Any] = queue.Queue()
    client.async_infer(model, given, lambda result, error: later.put(result or error))
    return {
        "plain": arrays(client.infer(model, given), names),
        "callback": arrays(later.get(timeout=30), names),
        "gzip": arrays(client.infer(model, given, compression_algorithm="gzip"), names),
        "deflate": arrays(client.infer(model, given, compression_algorithm="deflate"), names),
    }


def streamed(client: Any, model: str, inputs: dict[str, np.ndarray], names: list[str]) -> Any:
    """Many requests at once; the answers by their ids."""
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put(result or error))
    for number in range(IN_STREAM):
        client.async_stream_infer(model, tensors(grpc, inputs), request_id=str(number))
    found = [answers.get(timeout=30) for _ in range(IN_STREAM)]
    client.stop_stream()
    ids = {answer.get_response().id for answer in found}
    assert ids == {str(number) for number in range(IN_STREAM)}, ids
    return {"stream": arrays(found[-1], names)}


async def by_aio(url: str, model: str, inputs: dict[str, np.ndarray], names: list[str]) -> Any:
    async with grpc_aio.InferenceServerClient(url) as client:
        answer = await client.infer(model, tensors(grpc_aio, inputs), client_timeout=30)

        async def requests() -> Any:
            for number in range(3):
                given = tensors(grpc_aio, inputs)
                yield {"model_name": model, "inputs": given, "request_id": str(number)}

        found = [result or error async for result, error in client.stream_infer(requests())]
        return {"aio": arrays(answer, names), "aio stream": arrays(found[-1], names)}


def by_shared_memory(
    client: Any, kind: Any, model: str, inputs: dict[str, np.ndarray], outputs: list[Any]
) -> Any:
    """Inputs and outputs in memory of this process. outputs: names, dtypes and shapes."""
    given = tensors(kind, inputs)
    wanted = []
    regions = {}
    try:
        for tensor, (name, array) in zip(given, inputs.items(), strict=True):
            regions[name] = region(client, name, array.nbytes)
            shm.set_shared_memory_region(regions[name], [array])
            tensor.set_shared_memory(name, array.nbytes)
        for name, dtype, shape in outputs:
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            regions[name] = region(client, name, size)
            asked = kind.InferRequestedOutput(name)
            asked.set_shared_memory(name, size)
            wanted.append(asked)
        client.infer(model, given, outputs=wanted)
        return {
            name: shm.get_contents_as_numpy(regions[name], dtype, shape).tolist()
            for name, dtype, shape in outputs
        }
    finally:
        client.unregister_system_shared_memory()
        for held in regions.values():
            shm.destroy_shared_memory_region(held)


def region(client: Any, name: str, size: int) -> Any:
    key = f"/t{secrets.token_hex(6)}"
    held = shm.create_shared_memory_region(name, key, size)
    client.register_system_shared_memory(name, key, size)
    return held


def main() -> None:
    url, model, file, *http_url = sys.argv[1:]
    with np.load(file) as loaded:
        inputs = dict(loaded)
    client = grpc.InferenceServerClient(url)
    names = [output.name for output in client.get_model_metadata(model).outputs]
    plain = client.infer(model, tensors(grpc, inputs))
    report = unary(client, model, inputs, names)
    report |= streamed(client, model, inputs, names)
    report |= asyncio.run(by_aio(url, model, inputs, names))
    if http_url:
        shapes = [(name, plain.as_numpy(name).dtype, plain.as_numpy(name).shape) for name in names]
        with http.InferenceServerClient(http_url[0]) as other:
            report["HTTP memory"] = by_shared_memory(other, http, model, inputs, shapes)
        report["gRPC memory"] = by_shared_memory(client, grpc, model, inputs, shapes)
    statistics = client.get_inference_statistics(model).model_stats[0]
    counted = statistics.inference_stats.success.count
    print(json.dumps({"outputs": report, "counted": counted}))


if __name__ == "__main__":
    main()
