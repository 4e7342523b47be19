"""`swarm generate`: tokens of a language model, as they come."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import swarm
from nodes.cli.options import GenerationOptions, Target
from nodes.cli.with_mesh import connect
from nodes.console import duration, guarded, print_json
from swarm.errors import InvalidArgument, PermissionDenied
from swarm.language.cascade import Cascade
from swarm.language.cascaded import CascadedGeneration
from swarm.language.client import GenerateOptions, Generation
from swarm.language.ensembled import EnsembledGeneration


def run_generate(model: str, text: str, options: GenerationOptions, target: Target) -> int:
    """`swarm generate`; returns its exit code."""

    async def main() -> int:
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

    return guarded(main, target.json)


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
        return Path(path).read_text()
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
