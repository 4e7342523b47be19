"""gRPC clients of the Open Inference Protocol ask the gateway, with tritonclient's stubs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from grpc_rig import Gateway, gateway, numbers
from support.waiting import eventually
from tritonclient.utils import InferenceServerException

from nodes.gateway.grpc.server import GrpcServer
from nodes.gateway.hand import BytesInHand
from nodes.gateway.inference import Inference
from nodes.gateway.settings import GatewayOptions
from swarm.errors import (
    DeadlineExceeded,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
async def served() -> AsyncIterator[Gateway]:
    async with gateway() as running:
        yield running


@pytest.fixture
async def client(served: Gateway) -> AsyncIterator[Any]:
    async with triton.InferenceServerClient(served.url) as connected:
        yield connected


def tensors(start: int = 0) -> list[Any]:
    """tritonclient's inputs of `simple`."""
    made = []
    for name, array in numbers(start).items():
        tensor = triton.InferInput(name, list(array.shape), "INT32")
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


async def refused(asked: Any) -> str:
    """The status of a call that fails."""
    with pytest.raises(InferenceServerException) as failure:
        await asked
    return str(failure.value.status()).removeprefix("StatusCode.")


async def test_an_inference_brings_the_outputs_and_how_they_were_made(client: Any) -> None:
    answer = await client.infer("simple", tensors(5), request_id="a7")
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0")[0], np.arange(6, 22))
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT1")[0], np.arange(4, 20))
    response = answer.get_response()
    assert (response.id, response.model_name, response.model_version) == ("a7", "simple", "1")
    assert response.parameters["weights"].int64_param == 7
    assert not response.parameters["degraded"].bool_param
    assert '"node": "node-1"' in response.parameters["hops"].string_param


async def test_only_the_outputs_that_are_named_come_in_their_order(client: Any) -> None:
    wanted = [triton.InferRequestedOutput("OUTPUT1")]
    response = (await client.infer("simple", tensors(), outputs=wanted)).get_response()
    assert [output.name for output in response.outputs] == ["OUTPUT1"]
    assert len(response.raw_output_contents) == 1
    unknown = [triton.InferRequestedOutput("OUTPUT7")]
    assert await refused(client.infer("simple", tensors(), outputs=unknown)) == "INVALID_ARGUMENT"


async def test_the_budget_is_the_shorter_of_parameter_and_deadline(
    served: Gateway, client: Any
) -> None:
    await client.infer("simple", tensors())
    await client.infer("simple", tensors(), timeout=250_000)
    await client.infer("simple", tensors(), timeout=250_000, client_timeout=30.0)
    await client.infer("simple", tensors(), timeout=0, client_timeout=3.0)
    plain, parameter, both, deadline = (each.budget for each in served.mesh.requests)
    assert (plain, parameter, both) == (None, 0.25, 0.25)
    assert deadline is not None
    assert 2.0 < deadline <= 3.1


async def test_trace_session_and_agent_come_from_metadata(served: Gateway, client: Any) -> None:
    headers = {"traceparent": TRACE, "swarm-session": "arm-3", "agent": "camera"}
    await client.infer("simple", tensors(), headers=headers)
    request = served.mesh.requests[0]
    assert (request.traceparent, request.session, request.agent) == (TRACE, "arm-3", "camera")
    seen, peer, certificate = served.callers.seen[-1]
    assert (seen["agent"], peer, certificate) == ("camera", "127.0.0.1", "")


async def test_a_failure_has_the_status_of_the_mesh(served: Gateway, client: Any) -> None:
    for error in (
        Unavailable("nobody"),
        DeadlineExceeded("late"),
        PermissionDenied("no"),
        InvalidArgument("wrong"),
        ResourceExhausted("full", 0.25),
    ):
        served.mesh.failing = error
        assert await refused(client.infer("simple", tensors())) == str(error.status)
    served.mesh.failing = None
    assert await refused(client.infer("nobody", tensors())) == "NOT_FOUND"
    assert served.server.figures.by_code["NOT_FOUND"] == 1


async def test_a_caller_who_is_not_known_learns_health_and_no_more(
    served: Gateway, client: Any
) -> None:
    served.callers.refusal = PermissionDenied("no key")
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await refused(client.get_server_metadata()) == "PERMISSION_DENIED"
    assert await refused(client.infer("simple", tensors())) == "PERMISSION_DENIED"
    assert not served.mesh.requests


async def test_models_are_described_and_an_unknown_one_is_not_ready(client: Any) -> None:
    assert await client.is_model_ready("simple")
    assert not await client.is_model_ready("nobody")
    metadata = await client.get_model_metadata("simple")
    assert [(each.name, each.datatype, list(each.shape)) for each in metadata.inputs] == [
        ("INPUT0", "INT32", [1, 16]),
        ("INPUT1", "INT32", [1, 16]),
    ]
    config = (await client.get_model_config("simple")).config
    assert (config.name, config.max_batch_size, config.output[1].name) == ("simple", 0, "OUTPUT1")
    index = await client.get_model_repository_index()
    assert [(each.version, each.state) for each in index.models] == [
        ("1", "READY"),
        ("2", "UNAVAILABLE"),
    ]
    assert await refused(client.get_model_metadata("nobody")) == "NOT_FOUND"


async def test_what_is_not_offered_says_so_by_its_status(client: Any) -> None:
    for asked in (
        client.load_model("simple"),
        client.unload_model("simple"),
        client.register_cuda_shared_memory("r", b"AAAA", 0, 64),
        client.get_trace_settings(),
        client.get_log_settings(),
        client.get_system_shared_memory_status(),  # which is off
        client.infer("simple", tensors(), sequence_id=3, sequence_start=True),
        client.infer(
            "simple", tensors(), outputs=[triton.InferRequestedOutput("OUTPUT0", class_count=3)]
        ),
    ):
        assert await refused(asked) == "UNIMPLEMENTED"


async def test_a_refusal_says_after_how_long_to_come_again(served: Gateway) -> None:
    served.mesh.failing = ResourceExhausted("full", 0.25)
    async with grpc.aio.insecure_channel(served.url) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await infer(b"\x0a\x06simple")
    trailing = dict(failure.value.trailing_metadata())
    assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert trailing["retry-after-ms"] == trailing["grpc-retry-pushback-ms"] == "250"


async def test_a_client_that_goes_away_cancels_its_request(served: Gateway, client: Any) -> None:
    served.mesh.held.clear()
    with pytest.raises(InferenceServerException):
        await client.infer("simple", tensors(), request_id="gone", client_timeout=0.3)
    await eventually(lambda: served.mesh.cancelled == ["gone"], "the request is given up")


async def test_a_port_that_is_taken_is_an_error(served: Gateway) -> None:
    inference = Inference(served.mesh.answer, 1, BytesInHand(1_000_000))
    options = GatewayOptions(grpc=served.url)
    server = GrpcServer(inference, served.models, served.callers, options)
    with pytest.raises(InvalidArgument, match="cannot listen"):
        await server.start()
