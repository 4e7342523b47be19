"""Clients without our stubs: reflection, health, and a restart that they do not see."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_rig import gateway, numbers
from support.waiting import eventually

from nodes.gateway.grpc.messages import HEALTH, INFERENCE, message


async def ask_reflection(channel: Any, package: str, *asked: dict[str, Any]) -> list[Any]:
    """One answer to each question. Both packages have the same messages."""
    request = message(f"{package}.ServerReflectionRequest")
    response = message(f"{package}.ServerReflectionResponse")
    stream = channel.stream_stream(
        f"/{package}.ServerReflection/ServerReflectionInfo",
        request.SerializeToString,
        response.FromString,
    )
    return [answer async for answer in stream(iter([request(**each) for each in asked]))]


async def test_a_client_that_knows_nothing_learns_the_service_and_infers() -> None:
    async with gateway() as served, grpc.aio.insecure_channel(served.url) as channel:
        for package in ("grpc.reflection.v1", "grpc.reflection.v1alpha"):
            listed, found, absent = await ask_reflection(
                channel,
                package,
                {"list_services": "*"},
                {"file_containing_symbol": INFERENCE},
                {"file_by_filename": "absent.proto"},
            )
            services = [each.name for each in listed.list_services_response.service]
            assert {INFERENCE, HEALTH} <= set(services)
            assert absent.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]

        pool = DescriptorPool()  # all that this client knows from here on
        for data in found.file_descriptor_response.file_descriptor_proto:
            pool.Add(descriptor_pb2.FileDescriptorProto.FromString(data))
        method = pool.FindServiceByName(INFERENCE).methods_by_name["ModelInfer"]
        request = message_factory.GetMessageClass(method.input_type)(model_name="simple")
        for name, array in numbers(3).items():
            tensor = request.inputs.add(name=name, datatype="INT32", shape=array.shape)
            tensor.contents.int_contents.extend(array.ravel().tolist())
        answer = await channel.unary_unary(
            f"/{INFERENCE}/ModelInfer",
            type(request).SerializeToString,
            message_factory.GetMessageClass(method.output_type).FromString,
        )(request)
        output = np.frombuffer(answer.raw_output_contents[0], np.int32)
        np.testing.assert_array_equal(output, np.arange(4, 20))


async def test_balancers_watch_its_health_and_see_that_it_ends() -> None:
    async with gateway() as served, grpc.aio.insecure_channel(served.url) as channel:
        request = message("grpc.health.v1.HealthCheckRequest")
        response = message("grpc.health.v1.HealthCheckResponse")
        check = channel.unary_unary(
            f"/{HEALTH}/Check", request.SerializeToString, response.FromString
        )
        watch = channel.unary_stream(
            f"/{HEALTH}/Watch", request.SerializeToString, response.FromString
        )(request())
        serving, denied = response(status="SERVING"), response(status="NOT_SERVING")
        assert await check(request()) == await check(request(service=INFERENCE)) == serving
        assert await watch.read() == serving
        served.models.connected = False
        assert await watch.read() == denied
        served.models.connected = True
        assert await watch.read() == serving
        served.server.begin_drain()
        assert await watch.read() == denied
        assert await check(request()) == denied
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await check(request(service="absent"))
        assert failure.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_restart_behind_a_balancer_loses_no_call() -> None:
    """Clients are told to connect again while the gateway that ends still answers; the balancer
    then leads them to the other one."""
    async with gateway(connection_age=1.0) as first, gateway() as second:
        target = first

        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = await asyncio.open_connection("127.0.0.1", target.server.port)
            await asyncio.gather(carry(reader, there[1]), carry(there[0], writer))

        balancer = await asyncio.start_server(connect, "127.0.0.1", 0)
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{balancer.sockets[0].getsockname()[1]}")
        infer = channel.unary_unary(f"/{INFERENCE}/ModelInfer")
        request = message("inference.ModelInferRequest")(model_name="simple")
        for name, array in numbers().items():
            request.inputs.add(name=name, datatype="INT32", shape=array.shape)
            request.raw_input_contents.append(array.tobytes())
        data = request.SerializeToString()
        over = asyncio.Event()
        answered = 0

        async def keep_asking() -> None:
            nonlocal answered
            while not over.is_set():
                await infer(data)
                answered += 1

        async with balancer, channel, asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(keep_asking())
            await eventually(lambda: len(first.mesh.requests) > 100, "the first one answers")
            first.server.begin_drain()
            target = second  # a balancer that asks for its health
            await eventually(lambda: len(second.mesh.requests) > 100, "the second one answers")
            taken = len(first.mesh.requests)
            await first.server.drain(5.0)
            await eventually(lambda: len(second.mesh.requests) > 200, "the second one goes on")
            over.set()
        assert len(first.mesh.requests) == taken
        assert answered == taken + len(second.mesh.requests)


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes of one direction, to their end."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
