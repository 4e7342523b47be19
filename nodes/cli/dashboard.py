"""`swarm dashboard`: the fleet on one page, for any number of browsers, until Ctrl-C."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass

from nodes.access import present
from nodes.cli.signing import operator
from nodes.console import err, guarded, out, print_json
from nodes.event_loop import stop_on_signals
from nodes.logs import LogForm, set_up_logging
from swarm.errors import InvalidArgument
from swarm.link import LinkOptions
from swarm.models.registry import Registry


@dataclass(frozen=True)
class DashboardOptions:
    """See `swarm dashboard --help`."""

    host: str
    port: int
    https_cert: str
    https_key: str
    open_http: bool
    allow_actions: bool
    sign_with: str
    nats: str
    mesh: str


def run_dashboard(options: DashboardOptions, as_json: bool) -> int:
    """`swarm dashboard`; returns its exit code."""
    set_up_logging(LogForm())
    logging.getLogger("uvicorn").setLevel(logging.WARNING)

    async def main() -> int:
        try:
            from nodes.watch.dashboard.run import Dashboard
            from nodes.watch.dashboard.serve import Place
        except ImportError as error:
            raise InvalidArgument(
                f"{error}: the dashboard is an extra: pip install 'swarm-mesh[dashboard]'"
            ) from None
        place = Place(
            options.host, options.port, options.https_cert, options.https_key, options.open_http
        )
        place.check(options.allow_actions)
        link = LinkOptions(
            servers=tuple(options.nats.split(",")),
            name="swarm dashboard",
            **present.get().options(),
        )
        dashboard = Dashboard(link, options.mesh)
        if options.allow_actions:
            signed = operator(options.sign_with)
            dashboard.allow_acts(
                Registry(
                    dashboard.link, dashboard.subjects, signed.get("signer"), signed.get("verifier")
                ),
                secrets.token_urlsafe(24),
            )
        stop = stop_on_signals()
        with place.listen() as sock:
            url = place.url(sock) + (f"#token={dashboard.token}" if dashboard.token else "")
            _announce(url, options, as_json)
            await dashboard.run(place, sock, stop)
        return 0

    return guarded(main, as_json)


def _announce(url: str, options: DashboardOptions, as_json: bool) -> None:
    if as_json:
        acts = options.allow_actions
        print_json({"event": "ready", "url": url, "mesh": options.mesh, "actions": acts})
        return
    out.print(f"the mesh {options.mesh!r} is at", end=" ", highlight=False)
    out.print(url, style="bold", highlight=False, soft_wrap=True)
    if options.allow_actions:
        err.print("whoever has this address, with its token, may promote and roll back")
    err.print("Ctrl-C ends it")
