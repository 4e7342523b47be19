"""What the service manager is told of a node: datagrams of sd_notify(3) to `$NOTIFY_SOCKET`.

With `Type=notify` a unit counts as started when the node serves. With `WatchdogSec=` systemd ends
a node whose event loop hangs: the loop itself sends the sign of life.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from typing import Any

from swarm.periodic import BEAT, beat

log = logging.getLogger("swarm.node")

ALIVE_EVERY = 5 * BEAT  # seconds; systemd wants one in half of WatchdogSec
STATES = {"ready": "READY=1\n", "draining": "STOPPING=1\n"}


class ServiceManager:
    """`changed` is given each change of the node's state, `run` sends signs of life until it is
    cancelled. address: of the manager's socket; `@` stands for an abstract one."""

    def __init__(self, address: str) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._failed = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> ServiceManager | None:
        """That of this process, None where nobody wants to be told."""
        address = environment.get("NOTIFY_SOCKET", "")
        return cls(address) if address[:1] in ("/", "@") and len(address) > 1 else None

    def changed(self, document: Mapping[str, Any]) -> None:
        """document: `event`, the new state, and `detail`."""
        state, detail = str(document["event"]), str(document["detail"]).replace("\n", " ")
        self._send(f"{STATES.get(state, '')}STATUS={state}: {detail:.200}\n")

    async def run(self) -> None:
        """Tell that the event loop turns, until cancelled."""
        while True:
            self._send("WATCHDOG=1\n")
            await beat(ALIVE_EVERY)

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()

    def _send(self, text: str) -> None:
        try:
            self._socket.sendto(text.encode(), self._address)
        except OSError as error:
            if not self._failed:
                log.warning("the service manager at %s hears nothing: %s", self._address, error)
            self._failed = True
        else:
            self._failed = False
