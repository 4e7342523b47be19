"""A token of a language model whose second stage stands behind a slow link, beside a prediction:
the time without the link, one round trip, and the bytes of a turn's steps both ways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from support.cut_link import start_in
from support.meshes import READY
from support.slow_link import FRAME, SlowLink, slow_link, unavailable

import swarm
from bench.fleets.links import Shape
from bench.language.generate import SHARDS, of_mesh
from bench.language.language import MODEL, MOST_SESSIONS, SHAPE, language
from bench.report.figure import Figure
from bench.report.frame import Benchmark, Progress, by_turns
from bench.report.tables import new_table
from bench.rivals.workload import WrongAnswer
from nodes.console import out
from nodes.up.embedded_server import EmbeddedServer
from nodes.up.mesh import local_mesh, push
from swarm.errors import Unavailable
from swarm.language.steps import Forward, TokenStep

NEAR, FAR = "no link", "behind the link"
WITHIN = 0.15  # of the prediction
LINE = 128  # bytes of a message's line, with its subjects
SEGMENT, HEADERS = 1448, 52  # bytes of TCP's payload in a packet, and of its headers and IP's


@dataclass(frozen=True)
class LinkPlan:
    """sessions: at a time. tokens: of each answer."""

    shape: Shape
    sessions: tuple[int, ...] = (1, 4, 16)
    tokens: int = 100
    rounds: int = 3


def turn_bytes(sessions: int) -> int:
    """On the wire, of one message with a step of each session."""
    rows = np.zeros((1, SHAPE.width), np.float32)
    steps = [TokenStep("s" * 26, 0, 100, 101, (1000,), rows) for _ in range(sessions)]
    size = LINE + sum(map(len, Forward("_INBOX." + "i" * 22, steps).parts()))
    return size + -(-size // SEGMENT) * (HEADERS + FRAME)


def predicted_ms(near_ms: float, shape: Shape, sessions: int) -> float:
    """Of a token, where all sessions go on together: both ways are the link's."""
    return near_ms + shape.round_trip_ms + 2 * turn_bytes(sessions) / (125 * shape.mbit)


@asynccontextmanager
async def mesh_on(server: EmbeddedServer, name: str, namespace: str) -> AsyncIterator[swarm.Mesh]:
    """Three shards, all of whose messages go through the server. namespace: of the second one; ""
    for this one."""
    model = language(len(SHARDS))
    flags = ("--no-shm", "--slots", str(MOST_SESSIONS + 4), "--agent-share", "1")
    async with local_mesh(url=server.url, name=name, shm=False) as local:
        await push(local, model.manifest.to_json(), model.files)
        for role in SHARDS:
            if namespace and role == SHARDS[1]:
                start_in(namespace, local, role, MODEL, *flags)
            else:
                local.start(role, MODEL, *flags)
        await local.ready(READY)
        yield local.mesh


async def measure(plan: LinkPlan, progress: Progress) -> dict[str, Any]:
    """The document. Raises `Unavailable` where no link can be made, with the reason."""
    if why := await asyncio.to_thread(unavailable):
        raise Unavailable(f"no link can be made here: {why}")
    progress("starting")
    shape, cells = plan.shape, {}
    with slow_link(shape.mbit, shape.round_trip_ms / 1e3, shape.loss / 100) as link:
        async with (
            EmbeddedServer(host=link.address) as server,
            mesh_on(server, "near", "") as near,
            mesh_on(server, "far", link.inside[-1]) as far,
        ):
            meshes = {NEAR: near, FAR: far}
            for sessions in plan.sessions:
                cells[str(sessions)] = await _cell(plan, meshes, link, sessions, progress)
    return {"mbit": shape.mbit, "round_trip_ms": shape.round_trip_ms, "cells": cells}


async def _cell(
    plan: LinkPlan,
    meshes: dict[str, swarm.Mesh],
    link: SlowLink,
    sessions: int,
    progress: Progress,
) -> dict[str, Any]:
    found: dict[str, list[float]] = {name: [] for name in meshes}
    expected = (await of_mesh(meshes[NEAR], sessions, plan.tokens)).ids
    await of_mesh(meshes[FAR], sessions, plan.tokens)  # to be warm
    carried = 0
    for number, name in by_turns(plan.rounds, list(meshes)):
        progress(f"{sessions} sessions, round {number} of {plan.rounds}: {name}")
        before = link.bytes_down()
        run = await of_mesh(meshes[name], sessions, plan.tokens)
        if run.ids != expected:
            raise WrongAnswer(f"{sessions} sessions: the texts of {name} are others")
        found[name].append(run.figures()["token_p50_ms"])
        carried += link.bytes_down() - before if name == FAR else 0
    predicted = [predicted_ms(ms, plan.shape, sessions) for ms in found[NEAR]]
    ratios = [mine / thought for mine, thought in zip(found[FAR], predicted, strict=True)]
    return {
        "near_ms": Figure.of(found[NEAR], "ms").as_doc(),
        "far_ms": Figure.of(found[FAR], "ms").as_doc(),
        "predicted_ms": Figure.of(predicted, "ms").as_doc(),
        "ratio": Figure.of(ratios, "x", floor=True).as_doc(),
        "turn_bytes": turn_bytes(sessions),
        "bytes_a_token": round(carried / (plan.rounds * sessions * plan.tokens)),
    }


def show(document: dict[str, Any]) -> None:
    """One table."""
    headings = ("near ms", "ms", "predicted", "ratio", "B a turn", "B a token")
    title = f"{document['mbit']:g} Mbit/s, round trip {document['round_trip_ms']:g} ms"
    table = new_table(title, "sessions", *headings)
    for sessions, cell in document["cells"].items():
        names = ("near_ms", "far_ms", "predicted_ms", "ratio")
        values = [f"{Figure.from_doc(cell[name]).value:.4g}" for name in names]
        table.add_row(sessions, *values, str(cell["turn_bytes"]), str(cell["bytes_a_token"]))
    out.print(table)
    out.print(
        "ms a token without the link (near) and with it, medians of rounds, by turns; bytes of a "
        "turn as predicted, of a token as the link counted. All texts were compared."
    )


def misses(document: dict[str, Any]) -> list[str]:
    """The sessions whose time is far from the prediction."""
    return [
        f"{sessions} sessions take {cell['ratio']['value']} of the predicted time"
        for sessions, cell in document["cells"].items()
        if abs(cell["ratio"]["value"] - 1) > WITHIN
    ]


LINKED = Benchmark("generate-link", measure, show, misses=misses)
