"""`swarm demo --chat`: a language model in three shards, one of which dies in mid-sentence.

    client ─prompt─► shard-1 ─► shard-2 ─► shard-3 ─tokens─► client
                                fallback: goes on with shard-2's sessions

The answer is asked for twice, with one seed: undisturbed, and with a SIGKILL in its midst. Both
have to be the same, token for token.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodes.console import out
from nodes.demo.frame import (
    KILL_AT,
    VICTIM,
    StoryOptions,
    StoryRun,
    kill,
    node_of,
    report,
    run_story,
    start_pipeline,
)
from nodes.up.mesh import LocalMesh, local_mesh
from nodes.up.supervisor import NodeProcess
from shards.split.balance import ONE_HOST_BYTES_PER_MS
from shards.split.split import SplitResult, split
from swarm.errors import InvalidArgument, Unavailable
from swarm.language.client import GenerateOptions
from swarm.scratch import Scratch

STAGE = 2  # of the victim
QUESTION = [{"role": "user", "content": "os.path.join"}]
OPTIONS: GenerateOptions = {"max_tokens": 230, "temperature": 0.6, "top_p": 0.9, "budget": 30.0}
LEAST_TOKENS = 80  # of the answer, so that there is a midst
MOST_SEEDS = 40
READY_WITHIN, TOLD_WITHIN = 30.0, 5.0  # seconds


@dataclass
class ChatAnswer:
    """What came: tokens, their texts, and the moments (`time.monotonic`)."""

    seed: int
    tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def longest_wait(self, since: float = 0.0) -> float:
        """Milliseconds between two tokens, the later of which came after `since`."""
        pairs = zip(self.times, self.times[1:], strict=False)
        return max((1e3 * (b - a) for a, b in pairs if b > since), default=0.0)


def tell(asked: StoryOptions) -> int:
    """Exit code 0 only if both answers are equal, and the kill hit the session."""

    async def story(frame: StoryRun) -> None:
        frame.tell("splitting a toy language model into three shards …")
        with Scratch("toy") as folder:
            result = await asyncio.to_thread(_split, folder)
        async with local_mesh() as local:
            await start_pipeline(local, result)
            frame.tell("starting a NATS server, three shards and a fallback …")
            await frame.shown(local, result.manifest, READY_WITHIN)
            model = result.manifest.model
            right = await _undisturbed(local, model)
            victim = node_of(local, VICTIM)
            frame.tell(f"{QUESTION[0]['content']!r} is asked; {VICTIM} will be killed …")
            killed = _Kill(victim, max(1, int(KILL_AT * len(right.tokens))))
            heard = None if asked.as_json else _printer(killed)
            got = await _ask(local, model, right.seed, heard, killed)
            if not asked.as_json:
                print(flush=True)
            fallback = node_of(local, "fallback")
            took = await local.until(lambda: _has_taken(local, fallback), TOLD_WITHIN)
            frame.code = _report(right, got, killed, took, asked.as_json)

    return run_story(story, asked, seconds=0.0)


def _split(folder: Path) -> SplitResult:
    try:
        import tokenizers  # noqa: F401
    except ModuleNotFoundError as error:
        text = f"demo --chat: {error}: pip install 'swarm-mesh[language]'"
        raise InvalidArgument(text) from None
    from shards.language.folder import read_folder
    from shards.language.toy import NAME, write_toy

    write_toy(folder)
    model, language = read_folder(folder)
    return split(model, name=NAME, stages=3, bandwidth=ONE_HOST_BYTES_PER_MS, hints=language)


@dataclass
class _Kill:
    """SIGKILL for a node once so many tokens have come. at: the moment; 0 before it."""

    node: NodeProcess
    after: int
    at: float = 0.0

    def token(self, count: int) -> None:
        """So many have come."""
        if count == self.after:
            self.at = time.monotonic()
            kill(self.node)


def _printer(killed: _Kill) -> Callable[[str], None]:
    """Prints an answer as it comes, and where the node dies."""
    told = False

    def heard(text: str) -> None:
        nonlocal told
        print(text, end="", flush=True)
        if killed.at and not told:
            told = True
            out.print(f"[bold red]\\[{VICTIM}, pid {killed.node.pid}, gets SIGKILL][/]", end="")

    return heard


async def _undisturbed(local: LocalMesh, model: str) -> ChatAnswer:
    """The first seed's answer that is long enough. Raises `Unavailable`."""
    for seed in range(1, MOST_SEEDS + 1):
        answer = await _ask(local, model, seed)
        if len(answer.tokens) >= LEAST_TOKENS:
            return answer
    raise Unavailable(f"none of {MOST_SEEDS} answers has {LEAST_TOKENS} tokens")


async def _ask(
    local: LocalMesh,
    model: str,
    seed: int,
    heard: Callable[[str], None] | None = None,
    killed: _Kill | None = None,
) -> ChatAnswer:
    answer = ChatAnswer(seed)
    options: GenerateOptions = {**OPTIONS, "seed": seed}
    async for token in local.mesh.chat(model, QUESTION, **options):
        answer.times.append(time.monotonic())
        answer.tokens.append(token.token)
        answer.texts.append(token.text or "")
        if killed is not None:
            killed.token(len(answer.tokens))
        if heard is not None:
            heard(answer.texts[-1])
    return answer


def _has_taken(local: LocalMesh, node: NodeProcess) -> bool:
    """Whether a node has had sessions of the killed stage."""
    local.mesh.link.publish(local.mesh.subjects.status_request)
    parts = (local.status_of(node) or {}).get("generation", [])
    return any(part["stage"] == STAGE and part["counters"].get("opened", 0) for part in parts)


def summarise(
    right: ChatAnswer, got: ChatAnswer, *, killed_at: float, after: int, took: bool
) -> tuple[dict[str, Any], list[str]]:
    """The figures, and a sentence for each broken promise. right: undisturbed. killed_at: the
    moment of the kill, after so many tokens; 0 for none. took: another node had the sessions."""
    same = sum(a == b for a, b in zip(right.tokens, got.tokens, strict=False))
    seconds = right.times[-1] - right.times[0]
    doc: dict[str, Any] = {
        "seed": right.seed,
        "tokens": len(right.tokens),
        "equal_tokens": same,
        "equal": right.tokens == got.tokens and right.text == got.text,
        "killed_after_token": after if killed_at else None,
        "taken_over": took,
        "pause_ms": round(got.longest_wait(killed_at), 1) if killed_at else None,
        "longest_wait_undisturbed_ms": round(right.longest_wait(), 1),
        "tokens_per_second": round((len(right.tokens) - 1) / seconds, 1) if seconds else None,
    }
    broken = []
    if not doc["equal"]:
        broken.append(f"the text differs: {same} of {len(right.tokens)} tokens are equal")
    if not killed_at:
        broken.append(f"the answer ended before {VICTIM} was killed")
    elif not took:
        broken.append(f"the fallback has had no session of stage {STAGE}: the kill hit nothing")
    return doc, broken


def _report(right: ChatAnswer, got: ChatAnswer, killed: _Kill, took: bool, as_json: bool) -> int:
    doc, broken = summarise(right, got, killed_at=killed.at, after=killed.after, took=took)
    kept = "the text is the undisturbed one, token for token"
    then = "swarm up --model toy, and beside it: swarm chat toy --nats URL"
    return report(doc, broken, kept, then, as_json=as_json, more={"text": got.text})
