"""What a stage has room for, and its bounds."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.language.admission import USUAL_SHARES, Shares
from swarm.language.request import MOST_ID


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a stage's decoder: see `shards.language.kv_stage.KvStage`."""

    width: int
    context: int
    slots: int
    kv_bytes_per_token: int
    vocabulary: int = MOST_ID


@dataclass(frozen=True, slots=True)
class LanguageLimits:
    """Bounds of a stage."""

    kept_bytes: int = 256 << 20
    """Of hidden states that are kept for a new node of the next stage; what lies beyond is computed
    again from token ids."""

    pending_bytes: int = 64 << 20
    """Of steps that wait for a run; later ones are dropped, and come again."""

    idle: float = 30.0
    """Seconds after which a session that nobody speaks of leaves its slot."""

    shares: Shares = USUAL_SHARES
    """Of one agent, at stage 1."""

    reuse: bool = True
    """Whether a session that begins as another one takes a copy of its keys and values."""

    drafts: int = 0
    """Ids that stage 1 guesses from a session's own text while no other session is under way."""

    quota: float = 0.0
    """Tokens a second of prompts and answers of one agent, at stage 1; 0.0 for any number."""


USUAL = LanguageLimits()
