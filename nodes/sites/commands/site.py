"""`swarm site …`, `swarm submit`, `swarm results`: the work of these commands."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import asdict, replace
from typing import Any

import swarm
from nodes.cli.arrays import read_inputs
from nodes.cli.options import SiteLimits, Target
from nodes.cli.with_mesh import client_of
from nodes.console import conclude, err, out, print_json
from swarm.errors import InvalidArgument, NotFound, Status
from swarm.fleet.status_listener import request_statuses
from swarm.link import LinkMessage
from swarm.sites.forwarding import dropped_so_far
from swarm.sites.store import Limits, SiteStore
from swarm.subjects import speaker
from swarm.wire import oip

MB = 1_000_000
LISTEN = 1.3  # seconds: a gateway that is asked for its status has said it by then


async def run_add(site: str, options: SiteLimits, target: Target) -> None:
    """`swarm site add`."""
    async with client_of(target) as client:
        store, asked = SiteStore(client.link, client.subjects, site), _asked(options)
        try:
            limits = replace(await store.limits(), **asked)
        except NotFound:
            limits = Limits(**asked)
        await store.prepare(limits, change=True)
        most, then = limits.max_bytes / MB, limits.when_full
        conclude(
            target.json,
            {"site": site, **asdict(limits)},
            f"site {site} stores up to {most:g} MB of requests; then: {then}",
            f"next, at the hub: swarm-node --role gateway --site {site}",
        )


def _asked(options: SiteLimits) -> dict[str, Any]:
    """Arguments of `Limits`, of the options that were given."""
    most, keep = options.max_mb, options.keep_days
    asked = {
        "max_bytes": None if most is None else int(most * MB),
        "when_full": options.when_full or None,
        "keep": None if keep is None else keep * 24 * 3600,
    }
    return {name: value for name, value in asked.items() if value is not None}


async def run_status(site: str, target: Target) -> None:
    """`swarm site status`."""
    async with client_of(target) as client:
        store = SiteStore(client.link, client.subjects, client.site(site))
        forwarders = await _forwarders(client, store.site)
        state, progress = await store.state(), await store.progress()
        waiting = max(0, state.last - max(state.first - 1, progress.answered))
        dropped = dropped_so_far(progress, state.first)
        doc = {
            "site": store.site,
            **asdict(state),
            "waiting": waiting,
            "answered": progress.answered,
            "dropped": dropped,
            "forwarders": forwarders,
        }
        if target.json:
            print_json(doc)
            return
        out.print(
            f"site {store.site}: {waiting} requests wait ({state.waiting_bytes / MB:.2f} of "
            f"{state.most_bytes / MB:.0f} MB, then {state.when_full})"
            + (f", the oldest for {state.oldest:.0f} s" if waiting else ""),
            soft_wrap=True,
        )
        out.print(
            f"answered up to number {progress.answered}, {dropped} dropped so far; "
            f"{state.answers} answers are stored ({state.answers_bytes / MB:.2f} MB)",
            soft_wrap=True,
        )
        for node, said in forwarders.items():
            out.print(f"{node}: {said}", markup=False, soft_wrap=True)
        if not forwarders:
            out.print(
                "no forwarder is heard: the link is cut, or none runs at the hub "
                f"(swarm-node --role gateway --site {store.site})",
                soft_wrap=True,
            )


async def _forwarders(client: swarm.Mesh, site: str) -> dict[str, str]:
    """What the forwarders of a site say of themselves, by node; those that speak in `LISTEN`."""
    said: dict[str, str] = {}
    works = asyncio.Event()

    def on_status(message: LinkMessage) -> None:
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            doc = json.loads(bytes(message.data))
            state = str(doc["sites"][site]["state"])
            if doc["node"] != speaker(message.subject, message.headers):
                return  # a member speaks for another
            said[str(doc["node"])] = state
            if state == "forwarding":
                works.set()

    if client.link.grants.may_subscribe(client.subjects.status_all):
        sid = client.link.subscribe(client.subjects.status_all, on_status)
        request_statuses(client.link, client.subjects)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LISTEN):
                await works.wait()
        client.link.unsubscribe(sid)
    return said


async def run_remove(site: str, yes: bool, target: Target) -> None:
    """`swarm site remove`."""
    async with client_of(target) as client:
        store = SiteStore(client.link, client.subjects, site)
        state = await store.state()
        if (state.waiting or state.answers) and not yes:
            raise InvalidArgument(
                f"site {site} still stores {state.waiting} requests and {state.answers} answers: "
                "say --yes to delete them"
            )
        await store.remove()
        conclude(
            target.json, {"site": site, "removed": True}, f"site {site} stores nothing any more"
        )


async def run_submit(
    model: str, source: str, agent: str, site: str, repeat: int, target: Target
) -> None:
    """`swarm submit`."""
    async with client_of(target) as client:
        inputs = read_inputs(source)
        tickets = [
            await client.submit(model, inputs, agent=agent, site=site) for _ in range(repeat)
        ]
        first, last = tickets[0], tickets[-1]
        numbers = f"{first.number}" if first is last else f"{first.number} to {last.number}"
        conclude(
            target.json,
            {"tickets": [asdict(ticket) for ticket in tickets]},
            f"stored at site {first.site} as number {numbers}",
            f"next: swarm results --agent {agent} --nats {target.nats}",
        )


async def run_results(agent: str, site: str, follow: bool, count: int, target: Target) -> int:
    """`swarm results`; returns its exit code: 1 where an answer is a failure, or none is there."""
    async with client_of(target) as client:
        answers = client.results(agent, site=site, follow=follow or count > 0)
        given = failed = dropped = 0
        async for answer in answers:
            given += 1
            failed += answer.result.status is not Status.OK
            dropped = answer.dropped
            _print(answer, target.json)
            if given == count:
                await answers.read()
                break
        if not given and not target.json:
            err.print(f"no answer to {agent} is there: `swarm site status` tells what waits")
        if dropped and not target.json:
            err.print(f"{dropped} requests of this site were dropped: its store was full")
        return 1 if failed or not given else 0


def _print(answer: swarm.Answer, as_json: bool) -> None:
    """One answer on one line, or as a JSON document."""
    result = answer.result
    if as_json:
        doc: dict[str, Any] = {"number": answer.number, "dropped": answer.dropped}
        print_json(doc | {"result": oip.as_doc(result)})
        return
    if result.status is Status.OK:
        shapes = ", ".join(f"{name} {list(a.shape)}" for name, a in result.outputs.items())
        text = f"{result.model}@{result.version} {shapes}" + (" degraded" * result.degraded)
    else:
        text = f"{result.status}: {result.message}"
    out.print(f"{answer.number} {result.id} {text}", markup=False, soft_wrap=True)
