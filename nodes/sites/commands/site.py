"""`swarm site …`: the store of a site."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import typer

import swarm
from nodes.cli.command import argument, option, seldom
from nodes.cli.options import DOMAIN, Target
from nodes.cli.with_mesh import client_of
from nodes.console import conclude, out, print_json
from swarm.errors import InvalidArgument, NotFound
from swarm.fleet.status_listener import request_statuses
from swarm.link import LinkMessage
from swarm.sites.forwarding import dropped_so_far
from swarm.sites.store import SiteStore, StoreLimits
from swarm.subjects import speaker

MB = 1_000_000
LISTEN = 1.3  # seconds: a gateway that is asked for its status has said it by then
SiteName = Annotated[str, DOMAIN, typer.Argument(help="JetStream domain of the site's server.")]


@dataclass(frozen=True)
class SiteLimits:
    """Of `swarm site add`."""

    max_mb: float | None = option(
        None,
        "Megabytes of requests that wait, and of answers each; 1074 at first, and then as it is.",
        min=0.07,
    )
    when_full: str = option(
        "",
        "refuse: the newest request, which is so at first. drop-oldest: and count it. Empty: as it "
        "is.",
    )
    keep_days: float | None = seldom(
        None,
        "Days after which an answer is deleted, read or not; 7 at first, and then as it is.",
        min=0.001,
    )


async def add(site: SiteName, options: SiteLimits, target: Target) -> None:
    """Make the store of a site's requests and answers, or change its limits."""
    async with client_of(target) as client:
        store, asked = SiteStore(client.link, client.subjects, site), _asked(options)
        try:
            limits = replace(await store.limits(), **asked)
        except NotFound:
            limits = StoreLimits(**asked)
        await store.prepare(limits, change=True)
        most, then = limits.max_bytes / MB, limits.when_full
        conclude(
            target.json,
            {"site": site, **asdict(limits)},
            f"site {site} stores up to {most:g} MB of requests; then: {then}",
            f"next, at the hub: swarm-node --role gateway --site {site}",
        )


def _asked(options: SiteLimits) -> dict[str, Any]:
    """Arguments of `StoreLimits`, of the options that were given."""
    most, keep = options.max_mb, options.keep_days
    asked = {
        "max_bytes": None if most is None else int(most * MB),
        "when_full": options.when_full or None,
        "keep": None if keep is None else keep * 24 * 3600,
    }
    return {name: value for name, value in asked.items() if value is not None}


async def status(
    target: Target,
    site: Annotated[str, DOMAIN] = argument(
        "", "JetStream domain of the site; that of the server when empty."
    ),
) -> None:
    """Show what a site stores: requests that wait, answers, how many were dropped."""
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


async def remove(
    site: SiteName,
    target: Target,
    yes: bool = seldom(False, "Delete what waits there, too."),
) -> None:
    """Delete the store of a site."""
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
