"""Temporary rights of a local mesh: keys, credentials and certificates that end with it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from nodes.access import AccessOptions
from nodes.announce import announce, end_connections
from swarm.link import LinkOptions
from swarm.security.authority.authority import Authority
from swarm.security.authority.certificates import VALID, read_certificate
from swarm.security.authority.server_conf import operator_conf, tls_conf
from swarm.security.rights.permissions import Post

HOSTS = ("127.0.0.1", "localhost")


class LocalRights:
    """An authority in a new folder, and a certificate for this host, if there is to be TLS."""

    def __init__(self, folder: Path, mesh: str, tls: bool = True) -> None:
        self._tls = tls
        self.authority = Authority.create(folder, mesh)
        self._server = folder / "server"
        certificates = self.authority.certificates
        certificates.make()
        self._ca, self._cert, self._key = certificates.issue_server(self._server, HOSTS)
        # `swarm auth certs --rotate` finds it.
        self.authority.remember_server(self._server)
        self._issued = 0

    def rotation(self, pid_files: str) -> str:
        """The command that issues the servers' certificate anew, for people to paste."""
        words = ["swarm", "auth", "certs", "--rotate"]
        return shlex.join(
            [*words, "--auth", str(self.authority.directory), "--pid-file", pid_files]
        )

    def configuration(self) -> str:
        """For the server of the mesh."""
        users = operator_conf(self.authority, str(self.authority.directory / "jwt"))
        if not self._tls:
            return users
        return users + tls_conf(self._cert, self._key, self._ca, mutual=False)

    def new_certificate(self) -> str:
        """Issue the server's certificate anew; the server takes it when it reads its files again.
        Returns its serial number."""
        _, cert, _ = self.authority.certificates.issue_server(self._server, HOSTS, VALID)
        return read_certificate(cert).serial

    async def revoke(self, credentials: str, url: str) -> None:
        """Make the credentials in a file worthless, and tell the server at `url`. The file goes.

        Raises `NotFound`, `NotConnected`, `Unavailable`."""
        self.authority.revoke(Path(credentials).stem)
        await announce(self.authority, self._to(url))

    async def end_connections(self, url: str, keep: str) -> int:
        """The server at `url` ends all its connections but those of this name, and all connect
        again; returns how many."""
        return await end_connections(self.authority, self._to(url), [keep])

    def _to(self, url: str) -> LinkOptions:
        return LinkOptions(servers=(url,), tls_ca=self._trusted)

    def issue(self, role: str, *models: str, asks: Sequence[str] = ()) -> AccessOptions:
        """New credentials for one process. asks: the models that its own ask."""
        self._issued += 1
        return self.access(f"{role}-{self._issued}", role, *models, asks=asks)

    def access(self, name: str, role: str, *models: str, asks: Sequence[str] = ()) -> AccessOptions:
        """New credentials with this name."""
        serves = Post.of(role).stages(1)
        self.authority.add(name, role, list(models), asks=asks if serves else ())
        credentials = str(self.authority.credentials(name))
        return AccessOptions(credentials=credentials, tls_ca=self._trusted)

    @property
    def _trusted(self) -> str:
        return str(self._ca) if self._tls else ""
