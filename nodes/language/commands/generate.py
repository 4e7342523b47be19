"""`swarm generate`: tokens of a language model, as they come."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import swarm
from nodes.cli.command import argument, option, seldom
from nodes.cli.options import MODEL, ServedModel, Target
from nodes.cli.with_mesh import connect
from nodes.console import duration, print_json
from swarm.errors import InvalidArgument, PermissionDenied
from swarm.language.cascade import Cascade
from swarm.language.cascaded import CascadedGeneration
from swarm.language.client import GenerateOptions, Generation
from swarm.language.ensembled import EnsembledGeneration

CASCADE = "A larger model, which answers where this one is unsure of its first eight tokens."
UNSURE = "Unsure: the mean of their natural log probabilities is below this."
ENSEMBLE = "A second model: each token is the one of the largest mean probability."


@dataclass(frozen=True)
class PromptOptions:
    """Of `swarm generate`."""

    ids: str = option("", "The prompt as token ids, separated by commas.")
    max_tokens: int = option(64, "Tokens of the answer at most.", min=1)
    temperature: float = option(0.0, "0 takes the likeliest token.", min=0.0)
    top_p: float = seldom(1.0, "Of the likeliest tokens, those with this share.", min=0.0, max=1.0)
    top_k: int = seldom(0, "The k likeliest tokens; 0: all.", min=0)
    repetition_penalty: float = seldom(1.0, "Above 1: tokens that occurred are less likely.")
    seed: int = seldom(-1, "The same seed draws the same tokens; -1: a new one.")
    stop: str = seldom("", "Texts that end the answer, separated by commas.")
    schema: str = seldom("", "A file with a JSON schema: the answer is JSON that it allows.")
    budget: str = seldom("2m", "Time for all of it.")
    cascade: Annotated[str, MODEL] = seldom("", CASCADE)
    unsure: float = seldom(-1.0, UNSURE, max=0.0)
    ensemble: Annotated[str, MODEL] = seldom("", ENSEMBLE)


async def generate(
    model: ServedModel,
    options: PromptOptions,
    target: Target,
    text: str = argument("", "The prompt; or --ids.", metavar="[PROMPT]"),
) -> int:
    """Have a language model go on with a prompt, and print its tokens as they come."""
    if bool(text) == bool(options.ids):
        raise InvalidArgument('give one of a prompt, "Once …", and --ids 1,2,3')
    wanted = GenerateOptions(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        repetition_penalty=options.repetition_penalty,
        seed=None if options.seed < 0 else options.seed,
        stop=[each for each in options.stop.split(",") if each],
        budget=duration(options.budget),
    )
    if options.cascade:
        wanted["cascade"] = Cascade(options.cascade, options.unsure)
    if options.ensemble:
        wanted["ensemble"] = options.ensemble
    if options.schema:
        wanted["schema"] = read_schema(options.schema)
    prompt = text or read_ids(options.ids)
    async with connect(target, agent="swarm-generate") as client:
        for each in filter(None, (model, options.cascade, options.ensemble)):
            await check_generates(client, each)
        answer = client.generate(model, prompt, **wanted)
        began, times, tokens = time.perf_counter(), [], []
        async for token in answer:
            times.append(time.perf_counter() - began)
            tokens.append(token.token)
            if not target.json:
                piece = f"{token.token} " if token.text is None else token.text
                print(piece, end="", flush=True)
    if target.json:
        print_json(_document(answer, tokens, times))
    else:
        print()
        _tell(answer, times)
    return 0


async def check_generates(client: swarm.Mesh, model: str) -> None:
    """Say at once that a name is wrong: a model without nodes is waited for. A user who may not
    read the registry waits. Raises `NotFound`, `InvalidArgument`."""
    with contextlib.suppress(PermissionDenied):
        info = await client.model(model)
        if not info.generates:
            raise InvalidArgument(f"{info.model} is no language model: `swarm infer` asks it")


def read_ids(text: str) -> list[int]:
    """Token ids separated by commas. Raises `InvalidArgument`."""
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise InvalidArgument(f"--ids {text!r:.80}: token ids separated by commas") from None


def read_schema(path: str) -> str:
    """The text of a JSON schema. Raises `InvalidArgument`."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"--schema {path}: {error}") from None


def _document(answer: Generation, tokens: list[int], times: list[float]) -> dict[str, object]:
    usage = answer.usage
    return {
        "session": answer.request.session,
        "seed": answer.request.sampling.seed,
        "model": answer.model,
        "degraded": answer.degraded,
        "text": answer.text,
        "tokens": tokens,
        "finish": answer.finish,
        "prompt_tokens": usage.prompt_tokens if usage else 0,
        "completion_tokens": len(tokens),
        "first_token_ms": round(times[0] * 1e3, 3),
        "tokens_per_second": round(len(times) / times[-1], 1),
    }


def _tell(answer: Generation, times: list[float]) -> None:
    """On standard error, so that a pipe gets the text alone."""
    doc = f"{len(times)} tokens, {answer.finish}; the first after {times[0] * 1e3:.0f} ms, "
    print(f"{doc}{len(times) / times[-1]:.0f} a second{who_answered(answer)}", file=sys.stderr)


def who_answered(answer: Generation) -> str:
    """Of a cascade or an ensemble; "" for any other answer."""
    if not isinstance(answer, CascadedGeneration | EnsembledGeneration):
        return ""
    return f"; {answer.model} answered" + (", degraded" if answer.degraded else "")
