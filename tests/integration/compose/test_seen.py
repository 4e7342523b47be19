"""What a composition did with a request is seen: as spans, by --explain, in its answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import pytest_asyncio
from support.collectors import Collector, attributes
from support.commands import said
from support.compositions import composed_mesh
from support.meshes import digits
from support.waiting import eventually

import swarm
from nodes.up.mesh import LocalMesh
from nodes.watch.metrics.families import Families, NodeStatus
from swarm.fleet.documents import read_status
from swarm.tracing.inside import inside_of
from swarm.tracing.otel import OtlpTracer
from swarm.tracing.traceparent import make

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
]

SCHEMA = json.loads(
    (Path(swarm.__file__).parent / "schemas/status.schema.json").read_text(encoding="utf-8")
)
PARTS = {"small", "large", "label", "views", "each", "one", "fast", "mean"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalMesh]:
    async with composed_mesh(tmp_path_factory.mktemp("composed")) as made:
        yield made


def unsure() -> np.ndarray:
    """An image of which the small model is unsure, so that the large one is asked."""
    from support.meshes import whole

    from shards.zoo import digits_lite_model

    images, _ = digits()
    told = whole(digits_lite_model(), [{"image": image[None]} for image in images])
    margins = [float(np.diff(np.partition(row["logits"][0], -2)[-2:])[0]) for row in told]
    return images[int(np.argmin(margins))][None]


async def test_each_part_is_a_span_and_what_its_model_did_lies_below_it(local: LocalMesh) -> None:
    collector = Collector()
    try:
        tracer = OtlpTracer(collector.url, 1.0, "test")
        async with swarm.connect(local.url, local.name, tracer=tracer) as mesh:
            answer = await mesh.infer("cascade", {"image": unsure()}, 10.0)
        tracer.close()
        (root,) = collector.named("infer")
        spans = {span.span_id: span for span in collector.spans}
        assert {span.trace_id for span in collector.spans} == {root.trace_id}
        parts = {span.name.partition(" ")[2]: span for span in collector.named("part")}
        assert parts.keys() == PARTS
        for span in parts.values():
            assert spans[span.parent_span_id].name == "stage 1"
            assert spans[spans[span.parent_span_id].parent_span_id] is root
            assert root.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= root.end_time_unix_nano + 1_000_000
        assert attributes(parts["large"])["swarm.part.model"] == "large@1"
        assert attributes(parts["label"])["swarm.part.taken"] == "large"
        below = {
            name: sorted(s.name for s in spans.values() if s.parent_span_id == span.span_id)
            for name, span in parts.items()
        }
        assert below["small"] == ["stage 1"]
        assert below["large"] == ["stage 1", "stage 2"]
        assert below["views"] == []
        # The header that a part's model was asked with names the part's span.
        told = {work.name: work for work in inside_of(answer.hops[0])}
        assert parts["large"].span_id.hex() == told["large"].span
    finally:
        collector.close()


async def test_a_node_that_sends_spans_itself_puts_them_below_its_parts(
    tmp_path: Path,
) -> None:
    collector = Collector()
    flags = ("--otlp", collector.url, "--trace-share", "0")
    try:
        async with composed_mesh(tmp_path, flags=flags) as local:
            tracer = OtlpTracer(collector.url, 1.0, "test")
            async with swarm.connect(local.url, local.name, tracer=tracer) as mesh:
                await mesh.infer("cascade", {"image": unsure()}, 10.0)
            tracer.close()

            def sent() -> bool:
                return len(collector.named("infer")) >= 4

            await eventually(sent, "the nodes have sent their spans", 30.0)
            parts = {span.span_id: span.name for span in collector.named("part")}
            asked = [(s.name, parts.get(s.parent_span_id)) for s in collector.named("infer")]
            assert sorted(each for each in asked if each[1]) == [
                ("infer large", "part large"),
                ("infer small", "part each"),
                ("infer small", "part small"),
            ]
    finally:
        collector.close()


async def test_explain_draws_the_tree_of_parts(local: LocalMesh, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", image=unsure())
    where = ("--nats", local.url, "--mesh", local.name)
    words = ("infer", "cascade", "--input", str(tmp_path / "x.npz"), "--explain", *where)
    told = await asyncio.to_thread(said, *words)
    assert told.code == 0, told.stderr
    lines = told.stdout[told.stdout.index("inside stage 1") :].splitlines()
    named = [line.split()[0] for line in lines[1:]]
    assert set(named) - {"asks"} == PARTS
    assert any("taken: large" in line and "label" in line for line in lines)
    assert any("rows: 3" in line and "small@1" in line for line in lines)
    document = json.loads((await asyncio.to_thread(said, *words, "--json")).stdout)
    (hop,) = document["hops"]
    assert {work["name"] for work in hop["inside"]} == hop["parts"].keys() == PARTS


async def test_the_nodes_status_tells_each_part_and_prometheus_has_its_histogram(
    local: LocalMesh,
) -> None:
    await local.mesh.infer("cascade", {"image": unsure()}, 10.0)
    (node,) = [each for each in local.supervisor.nodes if "cascade" in each.arguments]

    def told() -> dict[str, Any] | None:
        status = local.status_of(node) or {}
        rows = {row["part"]: row for row in status.get("compositions", ())}
        return status if rows and rows["large"]["counters"]["runs"] else None

    status = await eventually(told, "the parts are told of")
    jsonschema.validate(status, SCHEMA)
    rows = {row["part"]: row for row in status["compositions"]}
    assert rows.keys() == PARTS
    assert (rows["small"]["is"], rows["label"]["is"]) == ("small@1", "choose")
    assert "seconds" not in rows["label"], "its time is that of others"
    assert sum(rows["small"]["seconds"]["counts"]) > 0
    read = read_status(json.dumps(status).encode(), status["node"])
    families = Families()
    families.add(NodeStatus(status["node"], read[0], "ready"))
    text = "\n".join(str(sample) for family in families for sample in family.samples)
    assert "swarm_part_seconds_count" in text
    assert "'part': 'large'" in text
    assert "'outcome': 'left_out'" in text


async def test_commands_tell_a_composition_in_plain_words(local: LocalMesh) -> None:
    where = ("--nats", local.url, "--mesh", local.name)
    told = await asyncio.to_thread(said, "model", "list", *where)
    line = next(line for line in told.stdout.splitlines() if "cascade" in line)
    assert "large@1, small@1" in line
    status = await asyncio.to_thread(said, "status", *where)
    assert "cascade@1" in status.stdout


async def test_a_request_that_nobody_traces_carries_times_alone(local: LocalMesh) -> None:
    answer = await local.mesh.infer("cascade", {"image": unsure()}, 10.0)
    assert answer.hops[0].extra.keys() == {"parts", "left_out"}
    traced = await local.mesh.infer("cascade", {"image": unsure()}, 10.0, traceparent=make())
    assert inside_of(traced.hops[0])
