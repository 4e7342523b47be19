"""The lines above and below the table: what is wrong, pipelines, models, events. Pure.

Parts are those of `PageState.whole`. All is `Text`, never markup: brackets
in an id or an event stay text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.text import Text

from nodes.cli.status_table import UNMEASURED, figure_text
from nodes.watch.top.signs import LEVEL, line_of

Part = Mapping[str, Any]
PROBLEMS_SHOWN = 3
COVER = {"primary": "well", "standby": "warn", "fallback": "warn", "none": "bad"}


def lines(texts: Iterable[Text]) -> Text:
    """Texts below each other."""
    return Text("\n", no_wrap=True, overflow="ellipsis").join(texts)


def verdict_text(verdict: Part, link: Part) -> Text:
    """What a person reads first: the worst of what is wrong, or that all is well."""
    problems = verdict["problems"]
    if len(problems) <= 1:
        found = [line_of(verdict["level"], verdict["text"])]
    else:
        found = [line_of(p["level"], p["text"]) for p in problems[:PROBLEMS_SHOWN]]
        if len(problems) > PROBLEMS_SHOWN:
            found.append(Text(f"  and {len(problems) - PROBLEMS_SHOWN} more", style="dim"))
    if not link["connected"] and link["error"]:
        found.append(Text(f"  {link['error']}", style="dim"))
    return lines(found)


def pipelines_text(pipelines: Sequence[Part], width: int) -> Text:
    """A line for each model version: how much, how fast, and who serves each stage."""
    if not pipelines:
        return Text("no node tells of a model yet", style="dim")
    return lines(_pipeline(pipeline, width) for pipeline in pipelines)


def _pipeline(pipeline: Part, width: int) -> Text:
    name = f"{pipeline['model']}@{pipeline['version']}"
    share = pipeline["share"]
    answers = pipeline["answers"] or pipeline
    latency = _pair(answers.get("p50"), answers.get("p99"))
    head = Text.assemble(
        (name, "bold"),
        f" {share:g} %" if share is not None else "",
        f"  {figure_text(pipeline['rate'])}/s  {latency} ms  ",
    )
    full = _stages(pipeline["stages"], long=True)
    if head.cell_len + full.cell_len > width:
        full = _stages(pipeline["stages"], long=False)
    return head + full


def _stages(stages: Sequence[Part], long: bool) -> Text:
    return Text(" → " if long else " ").join(_stage(stage, long) for stage in stages)


def _stage(stage: Part, long: bool) -> Text:
    sign, style = LEVEL[COVER[stage["cover"]]]
    seats = sum(seat["serves"] for seat in stage["seats"])
    text = f"{stage['stage']}{sign}"
    if seats != 1 or not long:
        text += f"×{seats}" if long else ""
    if long and stage["cover"] not in ("primary", "none"):
        text += f" {stage['cover']}"
    if long:
        text += f" {_pair(*stage['compute'])}"
    if stage["waiting"]:
        text += f" +{figure_text(float(stage['waiting'])).removesuffix('.00')}"
    return Text(text, style=style)


def _pair(p50: float | None, p99: float | None) -> str:
    if p50 is None and p99 is None:
        return UNMEASURED
    return f"{figure_text(p50)}/{figure_text(p99)}"


def models_text(models: Sequence[Part], said: Mapping[str, str]) -> Text:
    """A line for each model with an objective, with traffic that is split, or of which `said`, by
    model, says something."""
    found = []
    for model in models:
        name, objective = model["model"], model["objective"]
        parts = []
        if len(model["serve"]) > 1:
            shares = (f"{version} {share:g} %" for version, share in model["serve"].items())
            parts.append(" · ".join(shares))
        if name in said:
            parts.append(said[name])
        burning = ""
        if objective is not None:
            burning = objective["burning"]
            parts.append(("misses its objective: " if burning else "") + objective["text"])
        if parts:
            found.append(line_of("bad" if burning else "note", f"{name}: {'; '.join(parts)}"))
    return lines(found)


def event_text(event: Part, names: Mapping[str, str]) -> Text:
    """An event on one line. names: short ids, of the nodes that are known."""
    at = datetime.fromtimestamp(event["at"] / 1e3).strftime("%H:%M:%S")
    node = names.get(event["node"], event["node"])
    parts = (at, event["kind"], node, event["text"])
    return line_of(event["level"], " ".join(part for part in parts if part))
