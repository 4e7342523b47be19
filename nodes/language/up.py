"""Options of `swarm up` and `swarm demo`, and `swarm up --drafts`: stage 1 of a language model
guesses ids, with a smaller model or without."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nodes.cli.command import seldom
from nodes.cli.up import UpOptions
from nodes.feature import Given
from nodes.up.companion import Companion
from swarm.errors import InvalidArgument

if TYPE_CHECKING:
    from nodes.up.mesh import LocalMesh


@dataclass(frozen=True)
class UpDraftOptions:
    """Of `swarm up`."""

    drafts: int = seldom(
        0, "Ids that stage 1 of a language model guesses for each token.", min=0, max=16
    )
    draft_model: str = seldom(
        "",
        "A smaller language model with the same tokenizer, that guesses them: its folder, or "
        "`toy-draft`.",
    )


@dataclass(frozen=True)
class ChatStory:
    """Of `swarm demo`."""

    chat: bool = seldom(
        False,
        "Another story: a language model, one of whose shards dies in mid-sentence, and the text "
        "that goes on.",
    )


class UpDrafts(Companion):
    def __init__(self, options: UpDraftOptions) -> None:
        self._options = options
        self._folder: Path | None = None

    async def split(self, split: Callable[[str], Awaitable[Path]]) -> None:
        if self._options.draft_model:
            self._folder = await split(self._options.draft_model)

    async def prepare(self, local: LocalMesh) -> list[str]:
        flags = ["--drafts", str(self._options.drafts)]
        if self._folder is not None:
            from shards.manifest import read_dir  # the options need none of it

            small, _ = read_dir(self._folder)
            await local.keep(self._folder)
            flags += ["--draft-model", f"{small.model}@{small.version}"]
        return flags


def companions(given: Given) -> list[Companion]:
    options, up = given.of(UpDraftOptions), given.of(UpOptions)
    if options is None or up is None:
        return []
    if options.draft_model and not options.drafts:
        raise InvalidArgument("--draft-model guesses as many ids as --drafts says: give both")
    if options.draft_model and up.secure:
        raise InvalidArgument("--draft-model: keys of --secure let a node read one model alone")
    return [UpDrafts(options)] if options.drafts else []
