"""How a node serves a language model: its settings."""

from __future__ import annotations

from dataclasses import dataclass

from nodes.settings import check, tuning
from swarm.errors import InvalidArgument


@dataclass(frozen=True)
class GenerationOptions:
    """Raises `InvalidArgument`."""

    slots: int = tuning(
        8, "Sessions that a stage of a language model holds at a time.", least=1, most=4096
    )
    session_tokens: int = tuning(
        4096,
        "Tokens of one session at most, prompt and answer; never more than the model's context. "
        "Slots times tokens decide the memory of keys and values.",
        least=1,
    )
    agent_share: float = tuning(
        0.5,
        "Part of the slots that one client has at most, by its agent's name, and of the places of "
        "those that wait half a second for a slot; 1: all of them.",
        least=0.01,
        most=1,
    )
    token_quota: float = tuning(
        0.0,
        "Tokens a second, of prompts and answers, that one client may use at a node of stage 1, "
        "ten seconds of them at once; 0: any number.",
        least=0,
    )
    prefix_reuse: bool = tuning(
        True,
        "A session whose prompt begins as that of another session takes a copy of its keys and "
        "values. Off where a client may not learn by its first token's time what others asked.",
        negatable=True,
    )
    drafts: int = tuning(
        0,
        "Ids that stage 1 guesses, from a session's own text or by --draft-model, while no "
        "other session is under way; one run verifies them. It pays where hops are long and "
        "texts repeat themselves.",
        least=0,
        most=16,
    )
    draft_model: str = tuning(
        "",
        "A small language model with the same tokenizer, MODEL or MODEL@VERSION of the mesh: a "
        "node of stage 1 loads all of it, and has it guess where a session's own text says "
        "nothing. Where it does not pay, it is asked seldom.",
    )
    kept_bytes: int = tuning(
        256,
        "Megabytes of hidden states that a stage keeps, to go on at another node when the next "
        "stage's dies; beyond, they are computed again from the text.",
        unit="MB",
        least=1,
        name="kept_mb",
    )
    follow: bool = tuning(
        False,
        "A replica or a fallback node computes the sessions of other nodes' stages too, from stage "
        "2 on, a moment behind: when such a node dies, little is computed again.",
    )
    session_idle: float = tuning(
        30.0, "Seconds after which a session that nobody speaks of leaves its slot.", least=1
    )

    def __post_init__(self) -> None:
        check(self)
        if self.draft_model and not self.drafts:
            raise InvalidArgument("--draft-model guesses as many ids as --drafts says: give both")
