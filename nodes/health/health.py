"""Whether a node has started, lives, and is ready: three questions, as Kubernetes asks them.

A probe that says no has a consequence. Not started: nobody is asked yet. Not live: the process is
ended and started anew. Not ready: requests go elsewhere, and nothing is ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PROBES = ("livez", "readyz", "startupz")
READY, FAILED, LEFT = "ready", "failed", "left"  # states of a status document
NO_ANSWER = "the event loop does not turn"


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """ok: the probe's answer. reason: for people, one line."""

    ok: bool
    reason: str


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """What a node says of itself. state, detail: of its status document. connected: to a server.
    was_ready: every lane of its first version has pulled; its sessions are built and self-tested.
    """

    state: str
    detail: str
    connected: bool
    was_ready: bool

    @classmethod
    def of(cls, status: Mapping[str, Any], connected: bool) -> NodeHealth:
        """Of a status document."""
        was_ready = status.get("ready_ms", 0) > 0
        return cls(str(status["state"]), str(status["detail"]), connected, was_ready)

    def verdict(self, probe: str) -> ProbeAnswer:
        """probe: one of `PROBES`."""
        if probe == "startupz":
            return ProbeAnswer(self.was_ready, self._as_it_is)
        if probe == "readyz":
            if not self.connected:
                return ProbeAnswer(False, "no connection to a server")
            return ProbeAnswer(self.state == READY, self._as_it_is)
        # A lost server is no reason to end a node: it comes back by itself, its sessions built.
        return ProbeAnswer(self.state != FAILED, self._as_it_is)

    @property
    def _as_it_is(self) -> str:
        return f"{self.state}: {self.detail}"
