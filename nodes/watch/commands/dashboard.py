"""`swarm dashboard`: the fleet on one page, for any number of browsers, until Ctrl-C."""

from __future__ import annotations

import logging
import secrets

from nodes.cli.options import SignedTarget, Target
from nodes.cli.with_mesh import operator
from nodes.console import err, out, print_json
from nodes.event_loop import stop_on_signals
from nodes.logs import LogForm, set_up_logging
from nodes.watch.commands.declared import DashboardOptions
from swarm.errors import InvalidArgument
from swarm.models.registry import Registry


async def run_dashboard(options: DashboardOptions, target: SignedTarget) -> None:
    """`swarm dashboard`."""
    set_up_logging(LogForm())
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        from nodes.watch.dashboard.run import Dashboard
        from nodes.watch.dashboard.serve import DashboardPlace
    except ImportError as error:
        raise InvalidArgument(
            f"{error}: the dashboard is an extra: pip install 'swarm-mesh[dashboard]'"
        ) from None
    place = DashboardPlace(
        options.host, options.port, options.https_cert, options.https_key, options.open_http
    )
    place.check(options.allow_actions)
    dashboard = Dashboard(target.link("swarm dashboard"), target.mesh)
    if options.allow_actions:
        signed = operator(target)
        dashboard.allow_acts(
            Registry(
                dashboard.link, dashboard.subjects, signed.get("signer"), signed.get("verifier")
            ),
            secrets.token_urlsafe(24),
        )
    stop = stop_on_signals()
    with place.listen() as sock:
        url = place.url(sock) + (f"#token={dashboard.token}" if dashboard.token else "")
        _announce(url, options.allow_actions, target)
        await dashboard.run(place, sock, stop)


def _announce(url: str, allows_acts: bool, target: Target) -> None:
    if target.json:
        print_json({"event": "ready", "url": url, "mesh": target.mesh, "actions": allows_acts})
        return
    out.print(f"the mesh {target.mesh!r} is at", end=" ", highlight=False)
    out.print(url, style="bold", highlight=False, soft_wrap=True)
    if allows_acts:
        err.print("whoever has this address, with its token, may promote and roll back")
    err.print("Ctrl-C ends it")
