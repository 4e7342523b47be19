"""`swarm chat`: a conversation with a language model of the mesh, in a terminal or by a pipe."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import swarm
from nodes.cli.command import option, seldom
from nodes.cli.options import MODEL, ServedModel, Target
from nodes.cli.with_mesh import connect
from nodes.console import duration, err, guarded, report
from nodes.language.commands.generate import (
    CASCADE,
    ENSEMBLE,
    UNSURE,
    check_generates,
    who_answered,
)
from swarm.errors import InvalidArgument, SwarmError
from swarm.language.cascade import Cascade
from swarm.language.client import GenerateOptions, Generation

EXIT, NEW = "/exit", "/new"
HINT = "Ctrl-C stops an answer; /new forgets the talk; /exit, or Ctrl-C once more, ends it."
MOST_MESSAGES = 512  # of a talk; its oldest turns are forgotten
MOST_LINE = 1 << 20  # bytes
LINES_AHEAD = 64  # that were read before they are asked

T = TypeVar("T")


@dataclass(frozen=True)
class ChatOptions:
    """Of `swarm chat`."""

    system: str = option("", "A system message, before all that is said.")
    max_tokens: int = option(256, "Tokens of each answer at most.", min=1)
    temperature: float = option(
        -1.0, "0 takes the likeliest token; -1: as the model's owner recommends, else 0.", min=-1.0
    )
    top_p: float = seldom(1.0, "Of the likeliest tokens, those with this share.", min=0.0, max=1.0)
    seed: int = seldom(-1, "The same seed draws the same tokens; -1: a new one.")
    budget: str = seldom("2m", "Time for each answer.")
    cascade: Annotated[str, MODEL] = seldom("", CASCADE)
    unsure: float = seldom(-1.0, UNSURE, max=0.0)
    ensemble: Annotated[str, MODEL] = seldom("", ENSEMBLE)


def chat(model: ServedModel, options: ChatOptions, target: Target) -> int:
    """Talk with a language model; its answers are printed as they come."""

    async def main() -> int:
        async with connect(target, agent="swarm-chat") as client:
            for each in filter(None, (model, options.cascade, options.ensemble)):
                await check_generates(client, each)
            return await Talk(client, model, options).run()

    return guarded(main)


class Talk:
    """One conversation. messages: what was said, `role` and `content` each."""

    def __init__(self, mesh: swarm.Mesh, model: str, options: ChatOptions) -> None:
        self.messages: list[dict[str, str]] = []
        self._mesh, self._model = mesh, model
        self._system = options.system
        self._options = GenerateOptions(
            max_tokens=options.max_tokens,
            recommended=options.temperature < 0 and not options.ensemble,
            seed=None if options.seed < 0 else options.seed,
            budget=duration(options.budget),
            fit=True,
        )
        if options.temperature >= 0:
            self._options["temperature"] = options.temperature
        if options.temperature >= 0 or options.top_p < 1:
            self._options["top_p"] = options.top_p
        if options.cascade:
            self._options["cascade"] = Cascade(options.cascade, options.unsure)
        if options.ensemble:
            self._options["ensemble"] = options.ensemble
        self._interrupts = Interrupts()
        self._forget()

    async def run(self) -> int:
        """Answer each line of standard input, until there are no more; returns the exit code."""
        lines = lines_of_stdin()
        on_terminal = sys.stdin.isatty()
        if on_terminal:
            err.print(HINT)
        code = 0
        with self._interrupts:
            while True:
                if on_terminal:
                    print("> ", end="", flush=True)
                line = await self._interrupts.unless(lines.get())
                if not line or line.strip() == EXIT.encode():
                    return code
                try:
                    await self._say(line)
                except SwarmError as error:
                    failed = report(error, as_json=False)
                    code = code if on_terminal else failed

    def _forget(self) -> None:
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    async def _say(self, line: bytes) -> None:
        try:
            text = line.decode().strip()
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"the line is no UTF-8: {error.reason}") from None
        if text == NEW:
            self._forget()
        elif text:
            await self._answer(text)

    async def _answer(self, text: str) -> None:
        """Print the answer as it comes. Ctrl-C leaves it, and what has come counts as said."""
        if len(self.messages) >= MOST_MESSAGES:
            del self.messages[bool(self._system) : bool(self._system) + 2]
        asked = [*self.messages, {"role": "user", "content": text}]
        answer = self._mesh.chat(self._model, asked, **self._options)
        is_whole = await self._interrupts.unless(self._print(answer))
        print("" if is_whole else " [stopped]", flush=True)
        if is_whole and (who := who_answered(answer)):
            err.print(f"[dim]{who[2:]}[/]")
        self.messages = [*asked, {"role": "assistant", "content": answer.text}]

    async def _print(self, answer: Generation) -> bool:
        async for token in answer:
            if token.text is None:
                raise InvalidArgument(f"{self._model} gives no text: it has no tokenizer")
            print(token.text, end="", flush=True)
        return True


class Interrupts:
    """Ctrl-C, within the block, ends what `unless` waits for instead of the program."""

    def __init__(self) -> None:
        self._waits: asyncio.Task[Any] | None = None

    def __enter__(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupted)

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    async def unless(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What `work` returns; None where Ctrl-C ended it."""
        task = self._waits = asyncio.create_task(work)
        try:
            await asyncio.wait({task})
        finally:
            self._waits = None
            task.cancel()
        return None if task.cancelled() else task.result()

    def _interrupted(self) -> None:
        if self._waits is not None:
            self._waits.cancel()


def lines_of_stdin() -> asyncio.Queue[bytes]:
    """Lines of standard input as they come; b"" at its end.

    A thread reads: an event loop cannot wait for a file. It reads the descriptor itself, since
    Python's own buffer is locked while a thread waits in it, and the program could not end.
    """
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes] = asyncio.Queue(LINES_AHEAD)

    def read() -> None:
        left = b""
        while piece := os.read(0, 1 << 16):
            *whole, left = (left + piece).split(b"\n")
            for line in (*whole, *([left] if len(left) > MOST_LINE else [])):
                put(line + b"\n")
            left = b"" if len(left) > MOST_LINE else left
        if left:
            put(left)
        put(b"")

    def put(line: bytes) -> None:
        asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()

    threading.Thread(target=read, name="stdin", daemon=True).start()
    return lines
