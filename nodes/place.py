"""Where a server of this machine listens: an address and a port, as people write them."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from nodes.settings import WrongSetting
from swarm.errors import InvalidArgument

LOOPBACK = "127.0.0.1"
BACKLOG = 128  # connections that wait to be taken, Linux' bound of old


@dataclass(frozen=True, slots=True)
class ListenPlace:
    """host: an address of this machine, or its name. port: 0 for a free one."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> ListenPlace:
        """Of `PORT`, on loopback alone, or `ADDRESS:PORT`. Raises `InvalidArgument`."""
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not (port.isascii() and port.isdigit() and int(port) < 65536) or (colon and not host):
            raise InvalidArgument(
                f"{text!r} is no place to listen: give PORT, for this machine alone, or "
                "ADDRESS:PORT"
            )
        return cls(host or LOOPBACK, int(port))

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def at(self, port: int) -> str:
        """`HOST:PORT` with another port, as clients write it."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    def listen(self, option: str, backlog: int = BACKLOG) -> socket.socket:
        """A listening socket. option: the one that names this place. Raises `InvalidArgument`."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self.host, self.port))
            sock.listen(backlog)
        except OSError as error:
            sock.close()
            raise WrongSetting(
                f"{option}: cannot listen at {self.at(self.port)} ({error.strerror or error}): "
                "port 0 takes a free one"
            ) from None
        return sock
