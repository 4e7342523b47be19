"""Traces of real requests, as a real collector's protocol carries them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from nats.aio.client import Client
from support.collectors import Collector, attributes

import swarm
from nodes.up.mesh import LocalMesh
from swarm.errors import InvalidArgument, NotFound
from swarm.tracing.otel import OtlpTracer
from swarm.tracing.traceparent import make

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="session")]

IMAGE = {"image": np.zeros((1, 1, 8, 8), np.float32)}


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


async def test_a_request_is_a_span_with_a_child_a_hop_inside_its_time(
    digits_mesh: LocalMesh, collector: Collector
) -> None:
    tracer = OtlpTracer(collector.url, 1.0, "test")
    async with swarm.connect(digits_mesh.url, tracer=tracer) as mesh:
        result = await mesh.infer("digits", IMAGE)
        with pytest.raises(NotFound):
            await mesh.infer("no-such-model", IMAGE)
    tracer.close()
    root, failed = sorted(collector.named("infer"), key=lambda span: span.status.code)
    assert (root.name, failed.name) == ("infer digits", "infer no-such-model")
    assert failed.status.message
    assert attributes(root)["swarm.request_id"] == result.id
    hops = sorted(collector.named("stage"), key=lambda span: span.start_time_unix_nano)
    assert [hop.name for hop in hops] == ["stage 1", "stage 2", "stage 3"]
    end = root.start_time_unix_nano
    for hop, told in zip(hops, result.hops, strict=True):
        assert hop.parent_span_id == root.span_id
        assert hop.trace_id == root.trace_id
        assert attributes(hop)["swarm.node"] == told.node
        assert attributes(hop)["swarm.compute_us"] == told.compute_us
        assert end <= hop.start_time_unix_nano <= hop.end_time_unix_nano
        end = hop.start_time_unix_nano
    assert hops[-1].end_time_unix_nano <= root.end_time_unix_nano
    computing = collector.named("compute")
    assert {span.parent_span_id for span in computing} == {hop.span_id for hop in hops}


async def test_a_callers_trace_goes_on_and_its_decision_is_kept(
    digits_mesh: LocalMesh, collector: Collector
) -> None:
    tracer = OtlpTracer(collector.url, 0.0, "test")
    taken, left_out = make(), make(sampled=False)
    async with swarm.connect(digits_mesh.url, tracer=tracer) as mesh:
        traced = await mesh.infer("digits", IMAGE, traceparent=taken)
        plain = await mesh.infer("digits", IMAGE, traceparent=left_out)
        undecided = await mesh.infer("digits", IMAGE)
    tracer.close()
    (root,) = collector.named("infer")
    _, trace, span, _ = taken.split("-")
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (trace, span)
    assert all("at_us" in hop.extra for hop in traced.hops)
    assert not any("at_us" in hop.extra for hop in (*plain.hops, *undecided.hops))


async def test_any_nats_client_hands_its_trace_over_in_a_header(
    digits_mesh: LocalMesh, nats_client: Client
) -> None:
    request = {
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.0] * 64}]
    }
    answer = await nats_client.request(
        "swarm.default.infer.digits",
        json.dumps(request).encode(),
        timeout=10,
        headers={"Traceparent": make()},
    )
    hops = json.loads(answer.data)["parameters"]["hops"]
    assert len(hops) == 3
    assert all({"at_us", "lane_us", "batch_wait_us"} <= set(hop) for hop in hops)


@pytest.mark.parametrize(
    ("url", "share", "message"),
    [("127.0.0.1:4318", 0.1, "http://HOST:4318"), ("http://h:4318", 2.0, "0 to 1")],
)
async def test_a_wrong_setting_is_refused(url: str, share: float, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        OtlpTracer(url, share, "test")
