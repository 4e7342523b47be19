"""What the page may do where it is allowed to act: drain a node, promote, roll back.

Each act is the one that the command of the same name does, with the operator's key, and each is on
record where the mesh keeps an audit.
"""

from __future__ import annotations

import logging
from typing import Any

from nodes.acts import note
from swarm.errors import InvalidArgument, SwarmError
from swarm.fleet.service import drain
from swarm.link import Link
from swarm.models.registry import Registry
from swarm.subjects import Subjects, as_token, token

log = logging.getLogger("swarm.dashboard")


class Acts:
    """registry: with the operator's signer and verifier."""

    def __init__(self, link: Link, subjects: Subjects, registry: Registry) -> None:
        self._link = link
        self._subjects = subjects
        self._registry = registry

    def refusal(self) -> str:
        """Why nothing can be done here; "" where it can, as far as the server tells."""
        if not self._link.connected:
            return "the mesh cannot be reached"
        key = f"$KV.{self._subjects.config_bucket}.serve.any"
        if not self._link.grants.may_publish(key):
            return "the credentials of this dashboard are not an operator's"
        return ""

    async def do(self, document: dict[str, Any], where: str) -> dict[str, Any]:
        """Do an act and record it. document: with `act`, and what the act is about. where: the
        browser's address. Returns what was done, and whether it is on record.

        Raises `InvalidArgument` for an act that is none, and what the act raises.
        """
        act = document.get("act")
        if act == "drain":
            done = await self._drain(_named(document, "node"))
        elif act == "promote":
            done = await self._promote(_named(document, "model"), _named(document, "version"))
        elif act == "rollback":
            done = await self._rollback(_named(document, "model"))
        else:
            raise InvalidArgument(f"{str(act)[:40]!r} is no act: drain, promote, rollback")
        log.info("%s asked for %s", where, done)
        return done | {"audit": await self._on_record(done, where)}

    async def _drain(self, node: str) -> dict[str, str]:
        await drain(self._link, self._subjects, node)
        return {"act": "drain", "node": node}

    async def _promote(self, model: str, version: str) -> dict[str, str]:
        previous = await self._registry.promote(model, version)
        return {"act": "promote", "model": model, "version": version, "previous": previous}

    async def _rollback(self, model: str) -> dict[str, str]:
        version = await self._registry.rollback(model)
        return {"act": "rollback", "model": model, "version": version}

    async def _on_record(self, done: dict[str, str], where: str) -> str:
        """ "recorded", "no audit" where the mesh keeps none, or why it is not on record: the act is
        done all the same."""
        fields = {name: value for name, value in done.items() if name != "act"}
        fields["browser"] = as_token(where)
        try:
            kept = await note(self._link, self._subjects, done["act"], fields)
        except SwarmError as error:
            log.warning("not in the audit: %s: %s", done, error)
            return f"not recorded: {error}"
        return "recorded" if kept else "no audit"


def _named(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    return token(value if isinstance(value, str) else "", name)
