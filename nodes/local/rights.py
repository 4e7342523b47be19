"""Temporary rights of a local mesh: keys, credentials and certificates that end with it."""

from __future__ import annotations

from pathlib import Path

from nodes.access import Access
from swarm.authority.authority import Authority
from swarm.authority.certificates import write_certificates
from swarm.authority.server_conf import operator_conf, tls_conf

HOSTS = ("127.0.0.1", "localhost")


class LocalRights:
    """An authority in a new folder, and a certificate for this host."""

    def __init__(self, folder: Path, mesh: str) -> None:
        self.authority = Authority.create(folder, mesh)
        self._ca, self._cert, self._key = write_certificates(folder / "tls", HOSTS)
        self._issued = 0

    def configuration(self) -> str:
        """For the server of the mesh."""
        users = operator_conf(self.authority, str(self.authority.directory / "jwt"))
        return users + tls_conf(self._cert, self._key, self._ca, mutual=False)

    def issue(self, role: str, *models: str) -> Access:
        """New credentials for one process."""
        self._issued += 1
        return self.access(f"{role}-{self._issued}", role, *models)

    def access(self, name: str, role: str, *models: str) -> Access:
        """New credentials with this name."""
        self.authority.add(name, role, list(models))
        credentials = str(self.authority.credentials(name))
        return Access(credentials=credentials, tls_ca=str(self._ca))
