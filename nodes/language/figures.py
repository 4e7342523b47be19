"""What the stages of language models tell as figures."""

from __future__ import annotations

from nodes.figures import OF_STAGE, FiguresOf, counter, counters, durations, gauge

SESSIONS = ("opened", "refused", "evicted", "rebound", "gone")
FIGURES = (
    FiguresOf(
        "generation",
        {
            "swarm_generation_slots": gauge("Sessions that fit.", "slots"),
            "swarm_generation_sessions_held": gauge("Sessions in slots.", "sessions"),
            "swarm_generation_kv_bytes": gauge("Keys and values of sessions.", "kv_bytes"),
            "swarm_generation_kept_bytes": gauge(
                "Hidden states that are kept to replay sessions.", "kept_bytes"
            ),
            "swarm_generation_first_token_seconds": durations(
                "From a session's request to its first token.", "first_token_s"
            ),
            "swarm_generation_between_tokens_seconds": durations(
                "From a token of a session to its next one.", "between_tokens_s"
            ),
            "swarm_generation_tokens": counter(
                "Tokens that the stage has computed.", "counters.tokens"
            ),
            "swarm_generation_sessions": counters(
                "Sessions by what became of them at the stage.", "counters", "outcome", SESSIONS
            ),
        },
        labels=OF_STAGE,
    ),
)
