"""Which nats-server a mesh needs, and how a server tells which one it is. Pure.

Lanes are consumers whose pulls have priorities. A server of before 2.11 drops that from the
configuration of a consumer without a word: standbys and fallbacks would then compute beside
primaries that live.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from swarm.errors import ApiError, ServerTooOld

LEAST = (2, 12)
NEEDED = "nats-server {}.{} or newer".format(*LEAST)
# The first release without CVE-2026-33249 (GHSA-8m2x-3m6q-6w8j): before, the header of a traced
# message lets a client send that trace to subjects that it may not publish on.
LEAST_WITHOUT_FLAW = (2, 12, 6)
INVALID_JSON = 10025  # error number of a configuration that the server does not understand
_NUMBERS = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?![0-9])")
_WHOLE = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})(?![0-9])")
_VERSION = "_nats.ver"  # in the metadata of a stream or a consumer: of the server that answers


def is_too_old(version: str) -> bool:
    """Whether a server of this version keeps no lanes. Of one that tells none, or another kind of
    number, nothing is known: its lanes tell (`check_consumer`)."""
    found = _NUMBERS.match(version)
    return found is not None and (int(found[1]), int(found[2])) < LEAST


def flaw_of(version: str) -> str:
    """The known vulnerability of a server of this version that weakens rights, "" for none. Of one
    whose number cannot be read nothing is known."""
    found = _WHOLE.match(version)
    if found is None or tuple(map(int, found.groups())) >= LEAST_WITHOUT_FLAW:
        return ""
    return (
        f"nats-server {version} has CVE-2026-33249: a client may have traces of its messages "
        "sent to subjects that it has no right to. Upgrade it to {}.{}.{} or newer; the server's "
        "security advisories tell of others".format(*LEAST_WITHOUT_FLAW)
    )


def too_old(version: str, where: str) -> ServerTooOld:
    """where: the server, as people name it."""
    return ServerTooOld(
        f"{where} is nats-server {version}: lanes need {NEEDED}, whose consumers know priorities. "
        "Upgrade it; `swarm doctor --nats URL` tells the version of each server"
    )


def check_consumer(asked: Mapping[str, Any], stream: str, info: Mapping[str, Any]) -> None:
    """Raises `ServerTooOld` where a consumer was asked for with priorities, and the server that
    keeps it has none of them. info: what it says of the consumer."""
    has = info.get("config") or {}
    policy = asked.get("priority_policy")
    if policy is not None and has.get("priority_policy") != policy:
        version = (has.get("metadata") or {}).get(_VERSION)
        leader = (info.get("cluster") or {}).get("leader", "")
        raise too_old(str(version or "2.10 or older"), _keeper(stream, str(leader)))


def refused_priorities(refusal: ApiError, stream: str) -> ServerTooOld | None:
    """The error that a refusal stands for where the server knows no such priorities; None where it
    refused for another reason."""
    if refusal.err_code != INVALID_JSON or "priority policy" not in refusal.description:
        return None
    return too_old("2.11 or older", _keeper(stream))


def _keeper(stream: str, name: str = "") -> str:
    return " ".join(word for word in ("the server", name, "that keeps", stream) if word)
