"""A program that drives a server by tritonclient, as its users write them, and prints a report.

    python triton_http_client.py ADDRESS MODEL FILE.npz [aio]

FILE has the model's inputs. The report is one JSON object; `refused` has the texts of refusals.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from typing import Any

import numpy as np


async def report(http: Any, address: str, model: str, inputs: dict[str, np.ndarray]) -> Any:
    """http: `tritonclient.http`, or `tritonclient.http.aio`."""

    async def done(value: Any) -> Any:
        return await value if inspect.isawaitable(value) else value

    async def refusal(call: Any, *arguments: Any, **more: Any) -> str:
        try:
            await done(call(*arguments, **more))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "answered"

    client = http.InferenceServerClient(address)
    metadata = await done(client.get_model_metadata(model))
    names = [output["name"] for output in metadata["outputs"]]

    def given(binary: bool) -> list[Any]:
        tensors = []
        for each in metadata["inputs"]:
            array = inputs[each["name"]]
            tensor = http.InferInput(each["name"], list(array.shape), each["datatype"])
            tensor.set_data_from_numpy(array, binary_data=binary)
            tensors.append(tensor)
        return tensors

    async def infer(binary_in: bool = True, binary_out: bool | None = None, **more: Any) -> Any:
        if binary_out is not None:
            asked = [http.InferRequestedOutput(name, binary_data=binary_out) for name in names]
            more["outputs"] = asked
        return await done(client.infer(model, given(binary_in), **more))

    answers = {
        "binary both ways": await infer(),
        "JSON both ways": await infer(False, False),
        "binary in, JSON out": await infer(True, False),
        "JSON in, binary out": await infer(False, True),
        "gzip": await infer(request_compression_algorithm="gzip"),
        "deflate": await infer(request_compression_algorithm="deflate"),
        "gzip accepted": await infer(response_compression_algorithm="gzip"),
        "version, id, timeout": await infer(
            model_version="1", request_id="mine", timeout=5_000_000, priority=1
        ),
    }
    last = answers["version, id, timeout"].get_response()
    unknown = [http.InferRequestedOutput("absent")]
    classes = [http.InferRequestedOutput(names[0], class_count=3)]
    text = http.InferInput("text", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"words"], object))
    wrong = http.InferInput(metadata["inputs"][0]["name"], [1], "FP64")
    wrong.set_data_from_numpy(np.zeros(1))
    region = "/tritonclient"
    refused = {
        "unknown model": await refusal(client.get_model_metadata, "absent"),
        "unknown version": await refusal(client.infer, model, given(True), model_version="77"),
        "unknown output": await refusal(client.infer, model, given(True), outputs=unknown),
        "classes": await refusal(client.infer, model, given(True), outputs=classes),
        "BYTES": await refusal(client.infer, model, [text]),
        "datatype": await refusal(client.infer, model, [wrong]),
        "sequence": await refusal(client.infer, model, given(True), sequence_id=5),
        "too late": await refusal(client.infer, model, given(True), timeout=1),
        "load": await refusal(client.load_model, model),
        "unload": await refusal(client.unload_model, model),
        "system memory": await refusal(client.register_system_shared_memory, "r", region, 64),
        "GPU memory": await refusal(client.register_cuda_shared_memory, "r", b"AAAA", 0, 64),
        "trace": await refusal(client.get_trace_settings),
        "log": await refusal(client.get_log_settings),
    }
    found = {
        "server": await done(client.get_server_metadata()),
        "live": await done(client.is_server_live()),
        "ready": await done(client.is_server_ready()),
        "model ready": await done(client.is_model_ready(model)),
        "absent ready": await done(client.is_model_ready("absent")),
        "metadata": metadata,
        "config": await done(client.get_model_config(model)),
        "index": await done(client.get_model_repository_index()),
        "statistics": await done(client.get_inference_statistics(model)),
        "response": {key: value for key, value in last.items() if key != "outputs"},
        "refused": refused,
        "outputs": {
            way: {name: answer.as_numpy(name).tolist() for name in names}
            for way, answer in answers.items()
        },
    }
    await done(client.close())
    return found


def main() -> None:
    address, model, file, *kind = sys.argv[1:]
    if kind:
        import tritonclient.http.aio as http
    else:
        import tritonclient.http as http
    with np.load(file) as arrays:
        inputs = dict(arrays)
    print(json.dumps(asyncio.run(report(http, address, model, inputs))))


if __name__ == "__main__":
    main()
