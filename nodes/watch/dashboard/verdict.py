"""What is wrong, in words, the worst first: what a person reads in the first five seconds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nodes.watch.dashboard.facts import FALLBACK, PRIMARY, NodeFacts, ObjectiveFacts
from nodes.watch.dashboard.health import GONE, HealthLevel
from nodes.watch.dashboard.pipelines import NodeNow

RANK = {"bad": 0, "warn": 1, "note": 2}
RECENT_DEATH = 60.0  # seconds for which a death is told although nothing is missing any more
SLOW_START = 15.0  # seconds without becoming ready that are told
MOST_PROBLEMS = 20
DAY = 86400.0
SOON, LOSSY = 14 * DAY, 0.05  # of the alerts in deploy/monitoring


def problem(level: str, text: str, **where: str) -> dict[str, str]:
    """level: bad, warn or note. where: node or model, for a link."""
    return {"level": level, "text": text, **where}


def problems_of(
    nodes: Iterable[NodeNow],
    pipelines: Iterable[dict[str, Any]],
    served: Mapping[str, frozenset[str]],
    offenders: Iterable[Mapping[str, str]],
    silent: Mapping[str, float],
    waiting: Mapping[str, float],
    others: Iterable[dict[str, str]],
    objectives: Iterable[dict[str, Any]],
) -> list[dict[str, str]]:
    """The worst first, `MOST_PROBLEMS` at the most.

    served: versions that get traffic, by model, as far as they are known. silent: seconds since
    each node's last word. waiting: seconds for which a node has not been ready. others: what was
    found beside, as `warnings_of` finds it.
    """
    nodes, pipelines = list(nodes), list(pipelines)
    found = list(others)
    told: set[str] = set()
    covered = _covered(pipelines)
    started = _started_again(nodes)
    for pipeline in pipelines:
        model, version = pipeline["model"], pipeline["version"]
        if model in served and version not in served[model]:
            continue  # it gets no traffic
        for stage in pipeline["stages"]:
            found += _of_stage(model, stage, told)
        if _has_no_cover(nodes, model) and any(s["backed"] == 0 for s in pipeline["stages"]):
            found.append(problem("warn", f"{model}: no fallback is left", model=model))
    for node in nodes:
        found += _of_node(node, started.get(node.facts.node), covered, silent, waiting, told)
    found += [_of_objective(o) for o in objectives if o.get("burning")]
    found += [
        problem("warn", f"“{offender['name']}” is not believed: {offender['reason']}")
        for offender in offenders
    ]
    return sorted(found, key=lambda p: RANK[p["level"]])[:MOST_PROBLEMS]


def _of_stage(model: str, stage: dict[str, Any], told: set[str]) -> list[dict[str, str]]:
    name = f"{model}, stage {stage['stage']}"
    gone = [
        s["node"] for s in stage["seats"] if s["health"] in (HealthLevel.DEAD, HealthLevel.FAILED)
    ]
    if stage["cover"] == "none":
        told.update(gone)
        return [problem("bad", f"{name}: no node serves it", model=model)]
    if stage["cover"] == "primary":
        return []
    heir = next(s["node"] for s in stage["seats"] if s["serves"])
    told.update(gone)
    lost = f"{gone[0]} is gone" if gone else "no primary serves it"
    return [problem("warn", f"{name}: {lost}, {heir} took over", model=model, node=heir)]


def _covered(pipelines: Iterable[dict[str, Any]]) -> set[tuple[str, str, int]]:
    """The stages, by model and version, that some node serves."""
    return {
        (pipeline["model"], pipeline["version"], stage["stage"])
        for pipeline in pipelines
        for stage in pipeline["stages"]
        if stage["cover"] != "none"
    }


def _started_again(nodes: Iterable[NodeNow]) -> dict[str, NodeNow]:
    """For each node that is gone the one that was started in its place: of its role and its model,
    and ready since then. (A node has a new id at each start.) One stands for one."""
    nodes = list(nodes)
    well = sorted((n for n in nodes if n.health is HealthLevel.WELL), key=lambda n: n.facts.since)
    found: dict[str, NodeNow] = {}
    for gone in sorted(
        (n for n in nodes if n.health is HealthLevel.DEAD), key=lambda n: n.facts.at
    ):
        old = gone.facts
        after = [
            new
            for new in well
            if (new.facts.role, new.facts.model) == (old.role, old.model)
            and new.facts.since > old.at
        ]
        # A service manager starts it on its host, as a rule.
        after.sort(key=lambda new: new.facts.host != old.host)
        if after:
            found[old.node] = after[0]
            well.remove(after[0])
    return found


def _of_node(
    node: NodeNow,
    back: NodeNow | None,
    covered: set[tuple[str, str, int]],
    silent: Mapping[str, float],
    waiting: Mapping[str, float],
    told: set[str],
) -> list[dict[str, str]]:
    """back: the node in its place, where it is gone and was started again. covered: stages that
    some node serves."""
    facts, name = node.facts, node.facts.node
    if node.health is HealthLevel.FAILED:
        return [problem("bad", f"{name} ({facts.role}) failed: {facts.detail}", node=name)]
    if (
        node.health is HealthLevel.DEAD
        and name not in told
        and silent.get(name, 0.0) < RECENT_DEATH
    ):
        if back is not None:
            text = f"{facts.role} was started again: {name} is gone, {back.facts.node} is ready"
            return [problem("note", text, node=back.facts.node)]
        had = {(stage.model, stage.version, stage.stage) for stage in facts.stages}
        rest = "; others do its work" if had and had <= covered else ""
        return [problem("warn", f"{name} ({facts.role}) is gone{rest}", node=name)]
    if node.health is HealthLevel.SUSPECT:
        return [problem("warn", f"{name} ({facts.role}) does not answer its peers", node=name)]
    if node.health is HealthLevel.BUSY and waiting.get(name, 0.0) > SLOW_START:
        text = f"{name} ({facts.role}) is {facts.state}: {facts.detail}"
        return [problem("warn", text, node=name)]
    return []


def warnings_of(nodes: Iterable[NodeNow], wall: float) -> list[dict[str, str]]:
    """What nodes that live tell of themselves and of the server, each once. wall: seconds since
    1970."""
    found: dict[str, dict[str, str]] = {}
    for node in nodes:
        if node.health not in GONE:
            found |= {told["text"]: told for told in _told_by(node.facts, wall)}
    return list(found.values())


def _told_by(facts: NodeFacts, wall: float) -> Iterator[dict[str, str]]:
    who, name = f"{facts.node} ({facts.role})", facts.node
    for flaw in facts.flaws:
        text = f"{flaw.title} is missing at the server, or not as it has to be"
        yield problem("bad" if flaw.of else "warn", text)
    for stage in facts.stages:
        if stage.lost_device:
            where = f"stage {stage.stage} of {stage.model} on {stage.device}"
            yield problem("warn", f"{who} computes {where}: {stage.lost_device} failed", node=name)
    for what, at in facts.expires.items():
        if at - wall < SOON:
            whose = "the server's certificate" if what == "server" else f"the {what} of {who}"
            text = f"{whose} {'end' if what == 'credentials' else 'ends'} {_in_days(at - wall)}"
            yield problem("bad" if at - wall < DAY else "warn", text)
    if facts.rollout is not None and facts.rollout.state == "rolled-back":
        canary = f"{facts.rollout.model}@{facts.rollout.version}"
        yield problem("warn", f"the canary {canary} was rolled back", model=facts.rollout.model)
    if facts.loss > LOSSY:
        text = f"{who} sends {facts.loss:.0%} of its packets again: its link loses them"
        yield problem("warn", text, node=name)
    for where in facts.breakers:
        yield problem(
            "warn", f"requesters have stopped asking {where}, which fails again and again"
        )


def _in_days(seconds: float) -> str:
    if seconds < DAY:
        return "in less than a day" if seconds > 0 else "now: it has run out"
    return f"in {_counted(int(seconds / DAY), 'day')}"


def _has_no_cover(nodes: Iterable[NodeNow], model: str) -> bool:
    """Whether a model had a standby or a fallback, and none of them takes work any more."""
    covers = [n for n in nodes if n.facts.model == model and n.facts.priority > PRIMARY]
    had = any(n.facts.priority >= FALLBACK and n.health is not HealthLevel.LEFT for n in covers)
    return had and not any(n.health in (HealthLevel.WELL, HealthLevel.SUSPECT) for n in covers)


def _of_objective(objective: dict[str, Any]) -> dict[str, str]:
    model = str(objective["model"])
    how = f"{objective['burning']}, {objective['burn']:.1f} times as fast as allowed"
    return problem("bad", f"{model} misses its objective: {how}", model=model)


def objectives_of(objectives: Iterable[ObjectiveFacts]) -> dict[str, dict[str, Any]]:
    """One document for each model that has an objective: its requests over all nodes that answer
    for it, and the fastest burn of them."""
    of_model: dict[str, list[ObjectiveFacts]] = {}
    for objective in objectives:
        of_model.setdefault(objective.model, []).append(objective)
    return {model: _objective(model, told) for model, told in sorted(of_model.items())}


def _objective(model: str, told: list[ObjectiveFacts]) -> dict[str, Any]:
    worst = max(told, key=lambda objective: (bool(objective.burning), objective.burn))
    requests = sum(objective.requests for objective in told) or 1.0
    parts = []
    if worst.p99_ms is not None:
        slow = sum(objective.slow for objective in told) / requests
        parts.append(f"99 % within {worst.p99_ms:g} ms ({slow:.2%} took longer)")
    if worst.errors is not None:
        failed = sum(objective.failed for objective in told) / requests
        parts.append(f"at most {worst.errors:.2%} errors ({failed:.2%} failed)")
    parts.append(f"spends its error budget {worst.burn:.1f} times as fast as allowed")
    return {
        "model": model,
        "p99_ms": worst.p99_ms,
        "burning": worst.burning,
        "burn": worst.burn,
        "text": ", ".join(parts),
    }


def headline(
    problems: list[dict[str, str]], well: int, nodes: int, stages: int, rate: float
) -> dict[str, Any]:
    """The one line above all. well: nodes that are; nodes: all that did not leave."""
    serious = [p for p in problems if p["level"] != "note"]
    level = serious[0]["level"] if serious else "well" if well == nodes else "warn"
    if not nodes and not serious:
        return {"level": "warn", "text": "No node speaks in this mesh yet", "problems": problems}
    if not serious:
        rest = f"{_counted(stages, 'stage')}, {rate:.0f} requests a second"
        text = f"All well: {_counted(nodes, 'node')}, {rest}"
        if well != nodes:
            text = f"{well} of {_counted(nodes, 'node')} are well, and serve every stage: {rest}"
    elif len(serious) == 1:
        text = serious[0]["text"]
    else:
        text = f"{serious[0]['text']} (and {len(serious) - 1} more)"
    return {"level": level, "text": text, "problems": problems}


def unreachable() -> dict[str, Any]:
    """The one line while nothing is heard: nobody knows how the fleet is."""
    text = "Not known: the mesh cannot be reached"
    return {"level": "bad", "text": text, "problems": []}


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
