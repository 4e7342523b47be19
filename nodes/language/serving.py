"""A language model's version on one node: its stages take steps, and no lanes."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from nodes.language.draft_model import DraftModel
from nodes.language.loaded import LoadedLanguage
from nodes.language.server import GenerationServer
from nodes.language.settings import GenerationOptions
from nodes.versions.serving import Serving, SharedByStages
from swarm.fleet.advertised import Where, holds_entry
from swarm.gossip import Event
from swarm.language.admission import Shares
from swarm.language.limits import LanguageLimits
from swarm.link import LinkMessage

DRAIN_WITHIN = 4.0  # seconds for sessions that no other node takes
ENDED = frozenset(("died", "left"))  # events of nodes that take no steps any more


def _draft_model(loaded: LoadedLanguage) -> DraftModel | None:
    draft = loaded.draft
    return None if draft is None else DraftModel(draft.stages, draft.vocabulary)


class GenerationServing(Serving):
    """A `Serving` without lanes: `generation` are its stages."""

    def __init__(self, shared: SharedByStages, loaded: LoadedLanguage) -> None:
        super().__init__(shared, loaded)
        connection, info = shared.connection, self.info
        options = connection.config.of(GenerationOptions)
        shares = Shares(share=options.agent_share)
        limits = LanguageLimits(
            kept_bytes=options.kept_bytes,
            idle=options.session_idle,
            shares=shares,
            quota=options.token_quota,
            reuse=options.prefix_reuse,
            drafts=options.drafts,
        )
        self._membership, self._follows = connection.membership, options.follow
        self.generation = [
            GenerationServer(
                connection.mesh,
                info,
                stage,
                connection.id,
                decoder,
                partial(connection.peers.serving, info),
                limits,
                texts=loaded.texts,
                end_tokens=loaded.language.end_tokens,
                grammars=loaded.grammars if stage == info.last else None,
                draft=_draft_model(loaded) if stage == 1 else None,
                on_ended=None if shared.audit is None else partial(shared.audit.session, info),
            )
            for stage, decoder in loaded.decoders.items()
        ]
        self._cancelled = connection.mesh.link.subscribe(
            connection.mesh.subjects.cancel(info.model, info.version), self._cancel_session
        )
        self._membership.on_event.append(self._heard_of)
        for server in self.generation:
            server.start()

    @property
    def stages(self) -> frozenset[int]:
        """See `Serving`."""
        return frozenset(server.stage for server in self.generation)

    @property
    def devices(self) -> frozenset[str]:
        """See `Serving`."""
        return frozenset(server.decoder.device for server in self.generation)

    def told(self) -> dict[Where, tuple[str, Any]]:
        """How many sessions each stage has, and their beginnings: all prompts in the slots are
        hashed for it."""
        return {
            (where := (self.info.model, self.info.version, each.stage)): holds_entry(
                where, each.core.served, each.decoder.slots, self._follows, each.core.marks()
            )
            for each in self.generation
        }

    def rows(self, now: float) -> dict[str, list[dict[str, Any]]]:
        """See `Serving`."""
        return {"generation": [each.status(now) for each in self.generation]}

    def _heard_of(self, event: Event) -> None:
        if event.kind in ENDED:
            for server in self.generation:
                server.node_gone(event.node)

    def _cancel_session(self, message: LinkMessage) -> None:
        session = bytes(message.data[:128]).decode(errors="replace")
        for server in self.generation:
            server.cancel(session)

    async def drain(self) -> None:
        """Let other nodes go on with the sessions that are here, then free all."""
        await asyncio.gather(*(server.drain(DRAIN_WITHIN) for server in self.generation))
        self._mesh.link.unsubscribe(self._cancelled)
        self._membership.on_event.remove(self._heard_of)
        for server in self.generation:
            server.stop()
            await asyncio.to_thread(server.close)
        await super().drain()
