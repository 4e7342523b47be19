"""`swarm auth certs`: the certificates of servers and clients, and their rotation.

A certificate is looked at when a connection opens, so none ends by a rotation. A server reads its
files anew at a signal, a client when it connects again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from rich.table import Table

from nodes.announce import end_connections, reload_servers
from nodes.cli.auth_server import AuthTarget, validity
from nodes.cli.command import Named, option, seldom
from nodes.console import err, out, print_json
from swarm.errors import InvalidArgument
from swarm.security.authority.authority import Authority
from swarm.security.authority.certificates import (
    CertificateAuthority,
    CertificateState,
    read_certificate,
)
from swarm.security.authority.keys import read_text, write_text
from swarm.subjects import token


@dataclass(frozen=True)
class CertsOptions:
    """Of `swarm auth certs`."""

    client: Annotated[list[str] | None, Named("client")] = option(
        None, "Issue a certificate to this client; several times."
    )
    rotate: bool = option(False, "New certificates for all servers and clients.")
    new_authority: bool = seldom(False, "The next certificates come from a new authority.")
    finish: bool = option(False, "Trust the authorities before the present one no more.")
    reconnect: bool = seldom(
        False, "End all connections of --nats: all come back with their new files."
    )
    valid: str = option("825d", "Of new certificates: 90d, 12h.")


async def certs(act: CertsOptions, target: AuthTarget) -> None:
    """Show, issue and rotate certificates of servers and clients; no connection ends by it."""
    authority = Authority(target.auth)
    certificates = authority.certificates
    if not certificates.exists:
        raise InvalidArgument(
            f"{authority.directory} has no authority of certificates: `swarm auth server DIR "
            "--tls HOST` makes it"
        )
    if sum((act.rotate, act.new_authority, act.finish)) > 1:
        raise InvalidArgument("--new-authority, --rotate and --finish are three steps: one each")
    valid, steps = timedelta(seconds=validity(act.valid)), []
    if act.new_authority:
        certificates.make()
        _hand_out(authority)
        steps += [
            f"1. give {certificates.trusted} to each device as its --tls-ca",
            "2. swarm auth certs --rotate",
        ]
    if act.rotate:
        rotate(authority, valid)
        if authority.client_certificates:
            steps.append(
                f"give NAME.pem and NAME.key of {authority.directory}/users to their clients, "
                "the key first"
            )
        if certificates.is_changing:
            steps.append("then: swarm auth certs --finish")
    if act.finish:
        _finish(authority)
        steps.append(f"give {certificates.trusted} to each device as its --tls-ca")
    for name in act.client or []:
        if name == "ca":
            raise InvalidArgument("ca.pem is the authority's own: give the client another name")
        certificates.issue_client(
            authority.directory / "users", token(name, "client's name"), valid
        )
    if act.reconnect and not target.nats:
        raise InvalidArgument("--reconnect ends the connections of a server: add --nats URL")
    done = _tell_servers(act, target.pid_file)
    if act.reconnect:
        ended = await _reconnected(authority, target)
        done += f"{'; ' if done else ''}{ended} connections were ended, and connect again"
    _show(authority, done, steps, target.json)


def rotate(authority: Authority, valid: timedelta) -> None:
    """New certificates for all servers and clients that have one. Raises `InvalidArgument`."""
    certificates = authority.certificates
    for state in issued(authority):
        folder = state.file.parent
        if state.hosts:
            certificates.issue_server(folder, state.hosts, valid)
        else:
            certificates.issue_client(folder, state.name, valid)


def issued(authority: Authority) -> list[CertificateState]:
    """The certificates of servers and clients, as their files say. Raises `InvalidArgument`."""
    servers = [folder / "server.pem" for folder in authority.servers]
    files = [file for file in servers if file.exists()] + authority.client_certificates
    # The copies of the authority's own certificate lie beside them.
    return [read_certificate(file) for file in files if file.name != "ca.pem"]


def _finish(authority: Authority) -> None:
    """Raises `InvalidArgument` where a certificate of an earlier authority is in use."""
    certificates = authority.certificates
    if not certificates.is_changing:
        raise InvalidArgument("one authority is trusted: `--new-authority` begins a change of it")
    old = [state for state in issued(authority) if state.issuer != certificates.issuer]
    if old:
        raise InvalidArgument(
            f"{old[0].file} is of the authority before: `swarm auth certs --rotate` first"
        )
    certificates.finish()
    _hand_out(authority)


def _hand_out(authority: Authority) -> None:
    """Copy the list of trusted authorities to where servers and clients have it."""
    text = read_text(authority.certificates.trusted)
    for folder in {state.file.parent for state in issued(authority)}:
        write_text(folder / "ca.pem", text)


async def _reconnected(authority: Authority, target: AuthTarget) -> int:
    """Let all who are connected connect again; returns how many connections have ended."""
    servers = target.nats.split(",")
    return sum([await end_connections(authority, target.servers(one)) for one in servers])


def _tell_servers(act: CertsOptions, pid_file: str) -> str:
    """Let servers of this host read their files again; returns what people are told of that."""
    changed = act.rotate or act.new_authority or act.finish
    if pid_file:
        reload_servers(pid_file)
        return f"told: {pid_file}"
    return "no server was told: add --pid-file FILE, or signal it (SIGHUP)" if changed else ""


def _show(authority: Authority, done: str, steps: list[str], as_json: bool) -> None:
    certificates, now = authority.certificates, datetime.now(UTC)
    states = issued(authority)
    if as_json:
        print_json(
            {
                "authority": certificates.issuer,
                "changing": certificates.is_changing,
                "certificates": [_document(state, certificates, now) for state in states],
                "told": done,
                "next": steps,
            }
        )
        return
    table = Table("file", "for", "authority", "ends in")
    for state in states:
        doc = _document(state, certificates, now)
        table.add_row(
            str(state.file),
            " ".join(state.hosts) or state.name,
            "present" if doc["present"] else "before",
            f"{doc['days']} d" if doc["days"] >= 0 else "has ended",
        )
    out.print(table)
    for line in ([done] if done else []) + [f"next: {step}" for step in steps]:
        err.print(line, markup=False, soft_wrap=True, highlight=False)


def _document(
    state: CertificateState, certificates: CertificateAuthority, now: datetime
) -> dict[str, Any]:
    return {
        "file": str(state.file),
        "name": state.name,
        "hosts": list(state.hosts),
        "serial": state.serial,
        "present": state.issuer == certificates.issuer,
        "until": state.until.isoformat(timespec="seconds"),
        "days": (state.until - now).days,
    }
