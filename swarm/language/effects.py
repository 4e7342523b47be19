"""What a stage's decisions come to: messages for others, gathered per receiver. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from swarm.errors import Status, SwarmError
from swarm.language.request import GenerateRequest, Sampling
from swarm.language.steps import Forward, TokenStep, Word


@dataclass(frozen=True, slots=True)
class Tell:
    """A message to a client. session: the nodes' name of it, which `doc` does not hold. last: an
    empty one follows. error: it is a failure."""

    session: str
    reply: str
    doc: dict[str, Any]
    json: bool
    last: bool = False
    error: SwarmError | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """A request for another node of stage 1."""

    node: str
    request: GenerateRequest
    reply: str


@dataclass(frozen=True, slots=True)
class Guessing:
    """The draft model is to say what may follow `ids`, of `most` ids at most, for
    `HeadCore.guessed`; with 0 it is to read them. within: seconds, behind which nobody waits for
    the answer: `plan` is to be called then."""

    session: str
    ids: tuple[int, ...]
    most: int
    sampling: Sampling
    within: float


@dataclass(frozen=True, slots=True)
class Ended:
    """How a session ended at its head, for the audit. session: its public id. prompt, made:
    tokens."""

    session: str
    agent: str
    status: Status
    prompt: int = 0
    made: int = 0


@dataclass(slots=True)
class Outbox:
    """forward: by the next stage's node. behind: by the node that follows it. words:
    by the subject that hears them."""

    forward: dict[str, Forward] = field(default_factory=dict)
    behind: dict[str, Forward] = field(default_factory=dict)
    words: dict[str, list[Word]] = field(default_factory=dict)
    tells: list[Tell] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    guesses: list[Guessing] = field(default_factory=list)

    def step(self, node: str, step: TokenStep, probe: bool = False) -> None:
        """Send a step."""
        message = self.forward.setdefault(node, Forward(""))
        message.steps.append(step)
        message.probe = message.probe or probe

    def follow(self, node: str, step: TokenStep) -> None:
        """Send a step to a follower."""
        self.behind.setdefault(node, Forward("", follow=True)).steps.append(step)

    def close(self, node: str, session: str, epoch: int) -> None:
        """A session has ended."""
        self.forward.setdefault(node, Forward("")).closed[session] = epoch

    def leave(self, node: str, session: str) -> None:
        """A session goes on elsewhere."""
        self.forward.setdefault(node, Forward("")).left.append(session)

    def word(self, to: str, word: Word) -> None:
        """Say something back."""
        if to:
            self.words.setdefault(to, []).append(word)
