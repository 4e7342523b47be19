"""`swarm dashboard`: the fleet on one page, for any number of browsers, until Ctrl-C."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass

from nodes.cli.command import option, seldom
from nodes.cli.options import SignedTarget, Target
from nodes.cli.with_mesh import operator
from nodes.console import err, out, print_json
from nodes.event_loop import stop_on_signals
from nodes.logs import LogForm, set_up_logging
from swarm.errors import InvalidArgument
from swarm.models.registry import Registry


@dataclass(frozen=True)
class DashboardOptions:
    """Of `swarm dashboard`."""

    host: str = option("127.0.0.1", "Address to serve the page at; others than loopback need TLS.")
    port: int = option(8321, "Port of the page; 0 takes a free one.", min=0, max=65535)
    https_cert: str = seldom("", "PEM file of the certificate with which the page is served.")
    https_key: str = seldom("", "PEM file of the key of --https-cert.")
    open_http: bool = seldom(False, "Serve others than this machine without TLS: all may read.")
    allow_actions: bool = option(
        False,
        "Let who has the printed address drain nodes, promote and roll back, with this "
        "command's credentials; without it the page is only read.",
    )


async def dashboard(options: DashboardOptions, target: SignedTarget) -> None:
    """Show the fleet on one page, live, in any number of browsers, until Ctrl-C."""
    set_up_logging(LogForm())
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        from nodes.watch.dashboard.run import Dashboard, DashboardPlace
    except ImportError as error:
        raise InvalidArgument(
            f"{error}: the dashboard is an extra: pip install 'swarm-mesh[dashboard]'"
        ) from None
    place = DashboardPlace(
        options.host, options.port, options.https_cert, options.https_key, options.open_http
    )
    place.check(options.allow_actions)
    page = Dashboard(target.link("swarm dashboard"), target.mesh)
    if options.allow_actions:
        signed = operator(target)
        registry = Registry(page.link, page.subjects, signed.get("signer"), signed.get("verifier"))
        page.allow_acts(registry, secrets.token_urlsafe(24))
    stop = stop_on_signals()
    with place.listen() as sock:
        url = place.url(sock) + (f"#token={page.token}" if page.token else "")
        _announce(url, options.allow_actions, target)
        await page.run(place, sock, stop)


def _announce(url: str, allows_acts: bool, target: Target) -> None:
    if target.json:
        print_json({"event": "ready", "url": url, "mesh": target.mesh, "actions": allows_acts})
        return
    out.print(f"the mesh {target.mesh!r} is at", end=" ", highlight=False)
    out.print(url, style="bold", highlight=False, soft_wrap=True)
    if allows_acts:
        err.print("whoever has this address, with its token, may promote and roll back")
    err.print("Ctrl-C ends it")
