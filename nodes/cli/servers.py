"""Which version each NATS server has, for `swarm doctor` and `swarm status`."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.addresses import without_credentials
from swarm.link import LinkOptions
from swarm.link.greetings import greetings_of, old_server
from swarm.link.server_version import NEEDED, flaw_of
from swarm.link.servers import Greeting, ServerList


@dataclass(frozen=True, slots=True)
class Looked:
    """A server as it greets. version, cluster, domain: "" where it tells none. fault: why it keeps
    no lanes, "" where it may. flaw: a known vulnerability of its version, "" for none."""

    server: str
    version: str = ""
    cluster: str = ""
    domain: str = ""
    jetstream: bool = False
    fault: str = ""
    flaw: str = ""

    @property
    def told(self) -> str:
        """For people."""
        if self.fault:
            return self.fault
        if not self.version:
            return f"{self.server} tells its version behind TLS only"
        more = f", of the cluster {self.cluster}" if self.cluster else ""
        more += f", JetStream domain {self.domain}" if self.domain else ""
        more += "" if self.jetstream else ", without JetStream: another one has to keep the lanes"
        more += f"\nWARNING: {self.flaw}" if self.flaw else ""
        return f"{self.server} is nats-server {self.version} (lanes need {NEEDED}){more}"


async def look_at(options: LinkOptions) -> list[Looked]:
    """The given servers, and the others of their cluster; no rights are needed."""
    servers = ServerList(options.servers)
    found = await greetings_of(servers, options)
    silent = [each for each in map(without_credentials, servers.all()) if each not in found]
    return [
        *(_looked(server, greeting, options.domain) for server, greeting in found.items()),
        *(Looked(server, fault=f"{server} does not answer") for server in silent),
    ]


def _looked(server: str, greeting: Greeting, domain: str) -> Looked:
    old = old_server(greeting, server, domain)
    return Looked(
        server,
        greeting.version,
        greeting.cluster,
        greeting.domain,
        greeting.stores,
        "" if old is None else str(old),
        flaw_of(greeting.version),
    )
