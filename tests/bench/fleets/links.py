"""A grid of links, and on each of them every way to an answer; codecs by turns."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from support.cut_link import start_in
from support.slow_link import SlowLink, slow_link, unavailable

from bench.fleets.detector import LinkModel, changed, prepare
from bench.fleets.link_asker import ECHO
from bench.fleets.link_cost import where_it_pays
from bench.helpers import helper
from bench.report.figure import percentile, significant
from bench.report.frame import Benchmark, Progress
from nodes.console import out
from nodes.up.embedded_server import EmbeddedServer
from nodes.up.mesh import LocalMesh, local_mesh, push
from swarm.errors import InvalidArgument, SwarmError, Unavailable

READY = 40.0  # seconds for a node to become ready
BUDGET = 15.0  # seconds for each request
LONGEST = 240.0  # seconds for one way over one link
EDGE, STAGES, JPEG, ALONE = "edge", "stages", "jpeg", "all at the edge"
BESIDE = "edge, and small requests"


@dataclass(frozen=True)
class Shape:
    """mbit: Mbit/s each way. round_trip_ms. loss: percent of the packets."""

    mbit: float
    round_trip_ms: float
    loss: float

    def __str__(self) -> str:
        return f"{self.mbit:g} Mbit/s, {self.round_trip_ms:g} ms, {self.loss:g} % lost"


QUICK = (Shape(20, 10, 0),)
FULL = tuple(
    Shape(mbit, trip, loss) for mbit in (5, 20, 100) for trip in (10, 50) for loss in (0, 1)
)


def shapes_of(text: str) -> tuple[Shape, ...]:
    """Of `20/10/0,5/50/1`: Mbit/s, round trip in ms, percent lost. Raises `InvalidArgument`."""
    try:
        numbers = [[float(n) for n in word.split("/")] for word in text.split(",") if word]
        shapes = tuple(Shape(mbit, trip, loss) for mbit, trip, loss in numbers)
    except ValueError:
        shapes = ()
    if not shapes or not all(s.mbit > 0 <= s.round_trip_ms and 0 <= s.loss < 100 for s in shapes):
        raise InvalidArgument(f"--links {text!r}: it is like 20/10/0,5/50/1 (Mbit/s/ms/percent)")
    return shapes


@dataclass(frozen=True)
class LinksPlan:
    """codecs: of the features, by name; those of the results follow (`ALLOWED_RESULTS`). alone:
    requests one after the other, of each way; rated: requests `at_once` at a time. congestion:
    TCP's, of what the far side sends; "" for the system's. ultraface: the detector's file or
    folder, "" for the usual place. beside: whether small requests beside features are measured."""

    shapes: Sequence[Shape] = QUICK
    codecs: Sequence[str] = ("none", "i8", "i4")
    alone: int = 24
    rated: int = 24
    at_once: int = 4
    congestion: str = ""
    ultraface: str = ""
    beside: bool = True


async def measure_links(plan: LinksPlan, progress: Progress) -> dict[str, Any]:
    """The document. Raises `Unavailable` where no link can be made, with the reason."""
    if why := unavailable():
        raise Unavailable(f"no link can be made here: {why}")
    with tempfile.TemporaryDirectory(prefix="links-") as folder:
        progress("splitting the model")
        model = await asyncio.to_thread(prepare, Path(folder), plan.ultraface)
        alone = await _ask(plan, model, ALONE, "none", "", "", ())
        expected = alone.pop("found")
        document: dict[str, Any] = {
            "plan": asdict(plan),
            "model": model.name,
            "note": model.note,
            "detections": sum(len(boxes) for boxes in expected.values()),
            ALONE: alone,
            "model_of_cost": where_it_pays(model, tuple(plan.codecs)),
            "links": [],
        }
        for shape in plan.shapes:
            rows: list[dict[str, Any]] = []
            beside: list[dict[str, Any]] = []
            failed = ""
            try:
                with slow_link(shape.mbit, shape.round_trip_ms / 1e3, shape.loss / 100) as link:
                    async for row in _over(link, plan, model, progress, str(shape)):
                        found = row.pop("found", {})
                        row["changed"] = sum(
                            changed(boxes, expected[number]) for number, boxes in found.items()
                        )
                        (beside if row["way"] == BESIDE else rows).append(row)
            except (SwarmError, OSError, TimeoutError) as error:
                failed = f"{type(error).__name__}: {error}"  # the other links are measured
            document["links"].append(
                {**asdict(shape), "ways": rows, "beside": beside, "failed": failed}
            )
        return document


async def _over(
    link: SlowLink, plan: LinksPlan, model: LinkModel, progress: Progress, shape: str
) -> AsyncIterator[dict[str, Any]]:
    server = EmbeddedServer(host=link.address)
    await server.start()
    try:
        progress(f"{shape}: JPEG to the core")
        words = [server.url, str(model.folder / "whole")]
        async with helper("bench.fleets.jpeg_core", words) as core:
            await core.answer()
            row = await _ask(plan, model, JPEG, "none", server.url, "default", link.inside, link)
            yield {"way": JPEG, "codec": "jpeg"} | row
        if plan.beside:
            async with _mesh(server.url, "beside", model, EDGE, "none", plan, link) as local:
                local.mesh.link.subscribe(
                    ECHO, lambda message: local.mesh.link.publish(message.reply, [message.data])
                )
                for connections in (1, 2):
                    progress(f"{shape}: small requests beside features, {connections} connections")
                    where = server.url, local.name, link.inside, link, connections
                    row = await _ask(plan, model, EDGE, "none", *where)
                    yield {"way": BESIDE, "codec": "none", "connections": connections} | row
        for codec in plan.codecs:
            for way in (EDGE, STAGES):
                progress(f"{shape}: {way}, codec {codec}")
                async with _mesh(
                    server.url, f"{way}-{codec}", model, way, codec, plan, link
                ) as local:
                    inside = link.inside if way == EDGE else ()
                    suspected = _suspicions(local)
                    row = await _ask(plan, model, way, codec, server.url, local.name, inside, link)
                    row |= {"suspected": len(suspected), "redelivered": _redelivered(local)}
                    yield {"way": way, "codec": codec} | row
    finally:
        await server.stop()


def _redelivered(local: LocalMesh) -> int:
    """Messages that came to a stage more than once, since its start."""
    stages = [stage for status in local.statuses.values() for stage in status["stages"]]
    return sum(stage["counters"]["redelivered"] for stage in stages)


def _suspicions(local: LocalMesh) -> list[bytes]:
    suspicions: list[bytes] = []
    subject = local.mesh.subjects.event("suspected")
    local.mesh.link.subscribe(subject, lambda message: suspicions.append(bytes(message.data)))
    return suspicions


@asynccontextmanager
async def _mesh(
    url: str, name: str, model: LinkModel, way: str, codec: str, plan: LinksPlan, link: SlowLink
) -> AsyncIterator[LocalMesh]:
    """The nodes of one way; with stages the second one is behind the link."""
    manifest = model.manifest(way)
    files = {name: (model.folder / way / name).read_bytes() for name in manifest.files()}
    async with local_mesh(url=url, name=name, shm=False) as local:
        await push(local, manifest.to_json(), files)
        words = ["--codec", codec, "--two-connections", "off"]
        local.start("shard-1", manifest.model, *words)
        if way == STAGES:
            words += ["--congestion", plan.congestion, "--no-shm"]
            start_in(link.inside[-1], local, "shard-2", manifest.model, *words)
        await local.ready(READY)
        yield local


async def _ask(
    plan: LinksPlan,
    model: LinkModel,
    way: str,
    codec: str,
    url: str,
    mesh: str,
    inside: Sequence[str],
    link: SlowLink | None = None,
    connections: int = 0,
) -> dict[str, Any]:
    """Measure one way in a process of its own. connections: 1 or 2, with small requests beside the
    pictures; 0: one, without."""
    words = {
        "way": way,
        "folder": str(model.folder),
        "url": url,
        "mesh": mesh,
        "codec": codec,
        "budget": BUDGET,
        "alone": plan.alone,
        "rated": plan.rated,
        "at_once": plan.at_once,
        "congestion": plan.congestion if inside else "",
        "echo": connections > 0,
        "two_connections": connections == 2,
    }
    async with helper("bench.fleets.link_asker", words, inside=inside) as asker:
        await asker.answer(within=LONGEST)
        down, up = _carried(link)
        result = await asker.answer("measure", LONGEST)
        down_after, up_after = _carried(link)
    frames = plan.alone + plan.rated
    latencies = result["latencies_ms"]
    return {
        "p50_ms": significant(percentile(latencies, 0.5)),
        "p99_ms": significant(percentile(latencies, 0.99)),
        "frames_per_s": significant(plan.rated / result["seconds"]),
        "frames": frames,
        "answered": frames - result["failed"],
        "bytes_down": (down_after - down) // frames,
        "bytes_up": (up_after - up) // frames,
        "came_as": result["codec"],
        "attempts": result["attempts"] / plan.alone,
        "small_p50_ms": significant(percentile(result.get("small_ms", []), 0.5)),
        "small_p99_ms": significant(percentile(result.get("small_ms", []), 0.99)),
        "found": {int(number): boxes for number, boxes in result["found"].items()},
    }


def _carried(link: SlowLink | None) -> tuple[int, int]:
    """Bytes towards the far side and from it, so far."""
    return (0, 0) if link is None else (link.bytes_down(), link.bytes_up())


HEADINGS = ("codec", "p50 ms", "p99 ms", "frames/s", "KB down", "KB up", "answered", "changed")
LEGEND = """\
jpeg: the picture as JPEG 90 to a core that runs all and answers with boxes. edge: the first layers
at the edge, the rest at the core. stages: the second of two stages behind the link. Results of the
latter two are the model's whole output. codec: of the features; results are i8 where these are i8,
i6 or i4. KB: on the wire for each frame, TCP and IP included. changed: detections that are missed
or made up against the exact model."""


def show(document: dict[str, Any]) -> None:
    """Print the document of `measure_links`."""
    alone = document[ALONE]
    out.print(
        f"{document['model']}, {document['detections']} detections. All at the edge, on this "
        f"machine's core: p50 {alone['p50_ms']} ms, p99 {alone['p99_ms']} ms, "
        f"{alone['frames_per_s']} frames/s",
        highlight=False,
    )
    if document["note"]:
        out.print(f"not the detector: {document['note']}", highlight=False)
    out.print(model_table(document["model_of_cost"]["model"]))
    for link in document["links"]:
        out.print(table(link))
        if link["failed"]:
            out.print(f"not all of it was measured: {link['failed']}", highlight=False)
        for row in link["beside"]:
            out.print(
                f"requests of 100 bytes beside the edge's features, {row['connections']} "
                f"connection(s): p50 {row['small_p50_ms']:g} ms, p99 {row['small_p99_ms']:g} ms",
                highlight=False,
            )
    out.print(LEGEND, highlight=False)


def model_table(rows: list[dict[str, Any]]) -> Table:
    """Where a split pays, by calculation from parts that were measured here."""
    ways = [name for name in rows[0] if name not in ("slower", "mbit")]
    shown = Table(
        "device",
        "Mbit/s",
        *ways,
        title="by calculation: ms a frame / frames a second, round trip 10 ms",
    )
    for row in rows:
        times = [f"{row[way][0]:g} / {row[way][1]}" for way in ways]
        shown.add_row(f"{row['slower']} x slower", str(row["mbit"]), *times)
    return shown


def table(link: dict[str, Any]) -> Table:
    """One link."""
    title = f"{link['mbit']:g} Mbit/s, round trip {link['round_trip_ms']:g} ms"
    shown = Table("way", *HEADINGS, title=f"{title}, {link['loss']:g} % lost")
    for row in link["ways"]:
        shown.add_row(
            row["way"],
            row["codec"],
            f"{row['p50_ms']:g}",
            f"{row['p99_ms']:g}",
            f"{row['frames_per_s']:g}",
            f"{row['bytes_down'] / 1e3:.1f}",
            f"{row['bytes_up'] / 1e3:.1f}",
            f"{row['answered']}/{row['frames']}",
            str(row["changed"]),
        )
    return shown


LINKS = Benchmark("links", measure_links, show)
