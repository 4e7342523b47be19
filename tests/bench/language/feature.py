"""`swarm bench generate`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import typer

from bench.commands import Rounds, Told, numbers_of
from bench.feature import Feature
from nodes.cli.command import option

if TYPE_CHECKING:
    from bench.fleets.links import Shape


def generate(
    tell: Told,
    sessions: str = option("1,4,16", "At a time, with commas."),
    tokens: int = option(200, "Of each answer.", min=2, max=400),
    rounds: Rounds = 5,
    kills: int = option(
        0, "Instead: kill -9 of each stage, so often, at random moments of 8 sessions.", min=0
    ),
    follow: bool = option(False, "Of --kills: by turns with a fallback that follows."),
    drafts: int = option(
        0,
        "Instead: what so many drafts a round gain the toy, also behind --link; with "
        "--kills, of single sessions.",
        min=0,
        max=16,
    ),
    draft_model: str = option("toy-draft", "A toy that guesses them; empty for none."),
    flood: bool = option(False, "Instead: another client opens 500 chats, all the time."),
    prefix: bool = option(False, "Instead: the first token of prompts that begin alike."),
    replicas: int = option(1, "Nodes of each stage, of --prefix.", min=1),
    many: int = option(0, "Instead: the nodes' memory behind so many sessions.", min=0),
    link: str = option("", "Instead: stage 2 behind a link of Mbit/s/ms/percent lost (root)."),
    memory: int = option(0, "Instead: three nodes with a Qwen2-0.5B of 4 or 32 bits a weight."),
) -> int:
    """Tokens of a language model in three shards, beside one process that holds all of it."""
    if kills:
        from bench.language.killed_stages import KILLED, KillPlan

        plan = KillPlan(kills, tokens=tokens, follow=follow)
        if drafts:  # nothing is guessed beside other sessions
            plan = replace(plan, sessions=1, drafts=drafts)
        return tell.run(KILLED, plan)
    if flood:
        from bench.language.flood import FLOOD, FloodPlan

        return tell.run(FLOOD, FloodPlan(rounds=rounds))
    if prefix:
        from bench.language.prefixes import PREFIXES, PrefixPlan

        return tell.run(PREFIXES, PrefixPlan(rounds=rounds, replicas=replicas))
    if many:
        from bench.language.memory import MEMORY, MemoryPlan

        return tell.run(MEMORY, MemoryPlan(many))
    at_once = tuple(numbers_of(sessions, "--sessions"))
    shape = _link_shape(link) if link else None
    if drafts:
        from bench.language.drafts import DRAFTS, DraftPlan

        guessed = DraftPlan(drafts, draft_model, tokens, rounds, shape)
        return tell.run(DRAFTS, guessed)
    if shape is not None:
        from bench.language.link import LINKED, LinkPlan

        return tell.run(LINKED, LinkPlan(shape, at_once, tokens, rounds))
    if memory:
        from bench.language.resident import RESIDENT, ResidentPlan

        if memory not in (4, 32):
            raise typer.BadParameter("4 or 32 bits a weight", param_hint="--memory")
        bits: Literal[4, 32] = 4 if memory == 4 else 32
        return tell.run(RESIDENT, ResidentPlan(bits))
    from bench.language.generate import GENERATE, GeneratePlan

    return tell.run(GENERATE, GeneratePlan(at_once, tokens, rounds))


def _link_shape(text: str) -> Shape:
    from bench.fleets.links import shapes_of
    from swarm.errors import InvalidArgument

    try:
        (shape,) = shapes_of(text)
    except (InvalidArgument, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--link") from None
    return shape


FEATURE = Feature((generate,))
