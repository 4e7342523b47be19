"""The fleet as the page shows it: pure, with neither clock nor socket.

`swarm.fleet.view` keeps what is known of each node, in bounds, and marks who says the
impossible. Here are added: how each node is, pipelines, charts, events as lines, a verdict.
`take_…` and `tick` change the state. `whole()` is all of it, for a browser that comes;
`changes()` is the difference to the last call, for those that are there.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from nodes.cli.fields import one_line
from nodes.noted import notes_of
from nodes.notes import ModelNote
from nodes.watch.dashboard.answers import Answers, estimate
from nodes.watch.dashboard.facts import LearningFacts, NodeFacts, RolloutFacts, facts_of
from nodes.watch.dashboard.health import GONE, HealthLevel, health_of
from nodes.watch.dashboard.history import History, Rate, rounded
from nodes.watch.dashboard.news import NewsEntry, Newspaper
from nodes.watch.dashboard.pipelines import NodeNow, pipelines_of, plan_of
from nodes.watch.dashboard.verdict import (
    headline,
    objectives_of,
    problem,
    problems_of,
    unreachable,
    warnings_of,
)
from swarm.errors import DecodeError
from swarm.fleet.coverage import Version, unlisted_line
from swarm.fleet.documents import read_event
from swarm.fleet.view import FleetNode, FleetView
from swarm.subjects import TOKEN, speaker

MOST_NODES = 2000
MOST_MODELS = 64
EVENTS_SHOWN = 300  # of the last events, to a browser that comes
LARGEST_RESULT, LARGEST_SERVER_STATE = 1 << 20, 64 << 10  # bytes
NODE_FIGURES = ("rate", "queue_p99", "compute_p50", "compute_p99", "waiting", "rss")
MODEL_FIGURES = ("rate", "p50", "p99", "answer_p50", "answer_p99")
MOST_LEARNERS = 32  # whose curves are kept
MOST_MINTED = 200  # weight versions whose accuracies are kept, of a model
MOST_NAMELESS, FORGET_NAMELESS_AFTER, LONGEST_NAME = 20, 60.0, 80
NO_DOCUMENT = (ValueError, RecursionError)


@dataclass(slots=True)
class _Shown:
    """What the page keeps of a node. suspected, unready: moments in seconds."""

    facts: NodeFacts
    suspected: float | None = None
    unready: float | None = None
    rates: dict[tuple[str, int], Rate] = field(default_factory=dict)
    history: History = field(default_factory=lambda: History(len(NODE_FIGURES)))
    health: HealthLevel = HealthLevel.BUSY

    def now(self) -> NodeNow:
        rates = {key: rate.value for key, rate in self.rates.items()}
        return NodeNow(self.facts, self.health, rates)


@dataclass(frozen=True, slots=True)
class LinkState:
    """Whether the mesh can be reached. since: ms since 1970. error: why not, for people."""

    connected: bool
    since: int
    url: str = ""
    error: str = ""


class PageState:
    """mesh: its name. wall: ms since 1970, for people. Each `now` is in seconds, monotonic."""

    def __init__(self, mesh: str, wall: Callable[[], int] = lambda: int(time.time() * 1e3)) -> None:
        self.mesh = mesh
        self.fleet = FleetView(most_nodes=MOST_NODES)
        self.newspaper = Newspaper()
        self.answers = Answers(self._model_of)
        self.link = LinkState(False, wall(), error="connecting")
        self._wall = wall
        self._heard_since = 0.0  # the moment of the last connection
        self._shown: dict[str, _Shown] = {}
        self._nameless: dict[str, tuple[int, float]] = {}  # senders without a proper id
        self._desired: dict[str, dict[str, Any]] = {}
        self._serving: Mapping[Version, int] = {}
        self._unlisted: list[str] = []
        self._server: dict[str, Any] = {}
        self._models: dict[str, History] = {}
        self._curves: dict[str, History] = {}
        self._minted: dict[str, deque[dict[str, Any]]] = {}
        self._dirty: set[str] = set()
        self._gone: set[str] = set()
        self._last_event = 0  # the number of the last event in a change
        self._sent: dict[str, Any] = {}  # parts of the last change, to leave out equal ones
        self._points: dict[str, Any] = {}

    # --- what comes ---------------------------------------------------------------------

    def take_status(self, subject: str, data: bytes | memoryview, now: float) -> bool:
        """A message on a status subject; returns whether it changes how a node is."""
        sender = speaker(subject)
        if TOKEN.fullmatch(sender) is None:
            self._note_nameless(sender or subject, now)
            return False
        node = self.fleet.take_status(subject, data, now)
        if node is not None:
            shown = self._update(node, now)
            _count(shown, now)
        return self._follow_fleet(now)

    def take_page(self, page: Mapping[str, Any], now: float) -> None:
        """A page of the view that a node of the mesh told."""
        self.fleet.take_page(page, now)
        self._follow_fleet(now)

    def take_event(self, subject: str, data: bytes | memoryview, now: float) -> bool:
        """A message on an events subject; returns whether it was an event."""
        if not self.fleet.take_event(subject, data, now):
            return False
        news = self.newspaper.add(self.fleet.events[-1], self._wall())
        if news is None:
            return False
        shown = self._shown.get(news.node)
        if shown is not None and news.kind in ("suspected", "refuted", "returned"):
            shown.suspected = now if news.kind == "suspected" else None
            self._judge(shown, self.fleet.nodes[news.node], now)
        self._note_minted(news, self.fleet.events[-1])
        self._follow_fleet(now)
        return True

    def take_past(self, past: Sequence[tuple[str, bytes]]) -> None:
        """Events from before this process heard any, (subject, bytes) of each, oldest first."""
        for subject, data in past:
            try:
                event = read_event(data, subject.rpartition(".")[2])
            except DecodeError:
                continue
            news = self.newspaper.add(event, None)
            if news is not None:
                self._note_minted(news, event)

    def take_result(self, data: bytes | memoryview, now: float) -> None:
        """A message on a results subject."""
        if self.answers.wanted(now) and len(data) <= LARGEST_RESULT:
            self.answers.take(_parsed(data), now)

    def take_server(self, data: bytes | memoryview) -> None:
        """What an embedded server's supervisor says."""
        document = _parsed(data) if len(data) <= LARGEST_SERVER_STATE else {}
        store, restarts = document.get("store"), document.get("restarts")
        if document:
            self._server = {
                "state": _token(document.get("state")),
                "store": _token(store.get("state")) if isinstance(store, dict) else "",
                "restarts": restarts if isinstance(restarts, int) and 0 <= restarts < 1e9 else 0,
            }

    def take_desired(self, model: str, document: dict[str, Any] | None) -> None:
        """A model's desired state, as the registry has checked it; None where it is gone."""
        if document is None:
            self._desired.pop(model, None)
        elif model in self._desired or len(self._desired) < MOST_MODELS:
            self._desired[model] = document

    def take_serving(self, stages: Mapping[Version, int], unlisted: Iterable[str] = ()) -> None:
        """The number of stages of each version that requests may go to. unlisted: models that nodes
        serve while the server lists none."""
        self._unlisted = list(unlisted)[:MOST_MODELS]
        self._serving = dict(list(stages.items())[:MOST_MODELS])

    def take_link(self, connected: bool, url: str, error: str, now: float) -> None:
        """The connection to the mesh came or went."""
        was = self.link
        if connected and not was.connected:
            self._heard_since = now
        since = was.since if was.connected == connected else self._wall()
        self.link = LinkState(connected, since, url, one_line(error)[:300])

    # --- time -----------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """A second has passed: nodes that are silent, points of the charts."""
        self._points = {"models": {}, "learners": {}}
        if not self.link.connected:
            return  # nobody is heard, and nobody is dead for that
        self.fleet.tend(now)
        self._follow_fleet(now)
        for name, shown in self._shown.items():
            node = self.fleet.nodes[name]
            if self._judge(shown, node, now) or node.marks(now):
                self._dirty.add(name)
            shown.history.add(_node_point(shown, node))
        nameless = self._nameless.items()
        self._nameless = {n: e for n, e in nameless if now - e[1] < FORGET_NAMELESS_AFTER}
        for pipeline in self._pipelines(now):
            key = f"{pipeline['model']}@{pipeline['version']}"
            if key in self._models or len(self._models) < MOST_MODELS:
                point = _model_point(pipeline)
                self._models.setdefault(key, History(len(MODEL_FIGURES))).add(point)
                self._points["models"][key] = [rounded(figure) for figure in point]
        for name, learning in self._learners():
            if name in self._curves or len(self._curves) < MOST_LEARNERS:
                self._curves.setdefault(name, History(1)).add([learning.accuracy])
                self._points["learners"][name] = rounded(learning.accuracy)
        self._curves = {n: curve for n, curve in self._curves.items() if n in self._shown}

    # --- what goes out --------------------------------------------------------------------

    def whole(self, now: float) -> dict[str, Any]:
        """Everything, for a browser that comes."""
        return {
            "whole": True,
            "at": self._wall(),
            "mesh": self.mesh,
            "nodes": {name: self.row(name, now) for name in self._shown},
            "events": [news.as_doc() for news in list(self.newspaper.events)[-EVENTS_SHOWN:]],
            "history": {
                "models": {key: history.columns() for key, history in self._models.items()},
                "learners": {key: curve.columns()[0] for key, curve in self._curves.items()},
            },
            **self._parts(now),
        }

    def changes(self, now: float) -> dict[str, Any]:
        """What is not as it was at the last call. `at` is always there."""
        frame: dict[str, Any] = {"at": self._wall()}
        nodes = {name: self.row(name, now) for name in self._dirty if name in self._shown}
        if nodes:
            frame["nodes"] = nodes
        if self._gone:
            frame["gone"] = sorted(self._gone)
        news = [n.as_doc() for n in self.newspaper.since(self._last_event)]
        if news:
            self._last_event = news[-1]["number"]
            frame["events"] = news[-EVENTS_SHOWN:]
        for name, part in self._parts(now).items():
            if self._sent.get(name) != part:
                frame[name] = self._sent[name] = part
        if self._points:
            frame["points"] = self._points
        self._dirty, self._gone, self._points = set(), set(), {}
        return frame

    def row(self, name: str, now: float) -> dict[str, Any]:
        """A node, as the page shows it; times in ms, heard in ms since 1970."""
        shown, node = self._shown[name], self.fleet.nodes[name]
        document = asdict(replace(shown.facts, plans=(), parts=()))  # pipelines have them
        for stage, facts in zip(document["stages"], shown.facts.stages, strict=True):
            stage["rate"] = (
                rounded(shown.rates[key].value)
                if (key := (facts.version, facts.stage)) in shown.rates
                else None
            )
        heard = None if node.heard is None else self._wall() - int((now - node.heard) * 1e3)
        return document | {
            "health": shown.health,
            "kind": shown.now().kind(),
            "rate": _rate(shown, node),
            "heard": heard,
            "offence": _offence(node, now),
        }

    def history_of(self, node: str) -> dict[str, list[float | None]] | None:
        """The last minutes of a node, one point a second; None where it is not known."""
        shown = self._shown.get(node)
        if shown is None:
            return None
        return dict(zip(NODE_FIGURES, shown.history.columns(), strict=True))

    def model_names(self) -> list[str]:
        """The models that nodes tell of, and those whose desired state is known."""
        told = {shown.facts.model for shown in self._shown.values() if shown.facts.model}
        return sorted(told | set(self._desired))

    # --- inside ---------------------------------------------------------------------------

    def _follow_fleet(self, now: float) -> bool:
        """Take over what changed in the fleet's view; returns whether some node is not as it
        was."""
        changed = False
        for name in self.fleet.changed:
            node = self.fleet.nodes.get(name)
            if node is None:
                if self._shown.pop(name, None) is not None:
                    self._gone.add(name)
            elif node.status or node.gossiped:
                shown = self._shown.get(name) or self._update(node, now)
                changed |= self._judge(shown, node, now)
                self._dirty.add(name)
        self.fleet.changed.clear()
        return changed

    def _update(self, node: FleetNode, now: float) -> _Shown:
        facts = facts_of(node)
        shown = self._shown.get(node.node)
        if shown is None:
            shown = self._shown[node.node] = _Shown(facts)
        shown.facts = facts
        shown.unready = None if facts.state == "ready" else shown.unready or now
        return shown

    def _judge(self, shown: _Shown, node: FleetNode, now: float) -> bool:
        """Find out how a node is; returns whether it is not as it was."""
        health = health_of(node, shown.suspected, self._heard_since, now)
        changed = health is not shown.health
        shown.health = health
        return changed

    def _parts(self, now: float) -> dict[str, Any]:
        pipelines = self._pipelines(now)
        objectives = self._objectives()
        current = [shown.now() for shown in self._shown.values()]
        offenders = self._offenders(now)
        nodes = self.fleet.nodes
        problems = problems_of(
            current,
            pipelines,
            {model: frozenset(self._shares(model)) for model in self._desired},
            offenders,
            {
                name: now - max(nodes[name].heard or 0.0, nodes[name].gone_at)
                for name in self._shown
            },
            {n: now - k.unready for n, k in self._shown.items() if k.unready is not None},
            [
                *_complaint(self._server),
                *warnings_of(current, self._wall() / 1e3),
                *(problem("bad", unlisted_line(model), model=model) for model in self._unlisted),
                *_noted(pipelines),
            ],
            objectives.values(),
        )
        counted = [node.health for node in current if node.health is not HealthLevel.LEFT]
        well = counted.count(HealthLevel.WELL)
        stages = sum(len(pipeline["stages"]) for pipeline in pipelines)
        rate = sum(pipeline["rate"] or 0.0 for pipeline in pipelines)
        verdict = headline(problems, well, len(counted), stages, rate)
        return {
            "link": asdict(self.link),
            "verdict": verdict if self.link.connected else unreachable(),
            "pipelines": pipelines,
            "models": self._model_rows(pipelines, objectives),
            "offenders": offenders,
            "server": self._server,
        }

    def _pipelines(self, now: float) -> list[dict[str, Any]]:
        present = [shown.now() for shown in self._shown.values()]
        pipelines = pipelines_of(present, self._serving)
        living = [n for n, shown in self._shown.items() if shown.health not in GONE]
        notes = notes_of(self.fleet.nodes[name].status for name in living)
        for pipeline in pipelines:
            model, version = pipeline["model"], pipeline["version"]
            pipeline["notes"] = [
                {"about": note.about, "cells": note.cells, "warns": note.warns}
                for note in notes
                if (note.model, note.version) == (model, version)
            ]
            pipeline["share"] = self._shares(model).get(version)
            told = self.answers.as_doc(model, now)
            alone = sum(p["model"] == model for p in pipelines) == 1
            if told is None and alone:  # who answers tells no version
                told = estimate([s.facts for s in self._shown.values()], pipeline)
            pipeline["answers"] = told
            pipeline["plan"] = plan_of(present, pipeline)
        return pipelines

    def _rollout(self, model: str) -> RolloutFacts | None:
        """Of those who see the model's rollout the one who has come furthest."""
        seen = [
            shown.facts.rollout
            for shown in self._shown.values()
            if shown.facts.rollout is not None
            and shown.facts.rollout.model == model
            and shown.health not in GONE
        ]
        return max(
            seen, key=lambda rollout: (rollout.state != "running", rollout.share), default=None
        )

    def _shares(self, model: str) -> dict[str, float]:
        """Percent of the traffic, by version: of desired state, and of a rollout that runs."""
        served, rollout = _served(self._desired.get(model, {})), self._rollout(model)
        if rollout is None or not served or rollout.state == "rolled-back":
            return served
        rest = 1 - rollout.share / 100
        return {v: share * rest for v, share in served.items()} | {rollout.version: rollout.share}

    def _objectives(self) -> dict[str, dict[str, Any]]:
        living = [s.facts for s in self._shown.values() if s.health not in GONE]
        return objectives_of(objective for facts in living for objective in facts.objectives)

    def _model_rows(
        self, pipelines: Iterable[Mapping[str, Any]], objectives: Mapping[str, dict[str, Any]]
    ) -> list[dict[str, Any]]:
        names = {*self._desired, *(pipeline["model"] for pipeline in pipelines)}
        return [
            {
                "model": model,
                "serve": self._shares(model),
                "rollout": asdict(rollout) if (rollout := self._rollout(model)) else None,
                "previous": _token(self._desired.get(model, {}).get("previous")),
                "policy": _token(self._desired.get(model, {}).get("policy")) or "pull",
                "known": model in self._desired,
                "objective": objectives.get(model),
                "minted": list(self._minted.get(model, ())),
                "learners": [
                    {"node": name, **asdict(learning)}
                    for name, learning in self._learners()
                    if learning.model == model
                ],
            }
            for model in sorted(names)
        ]

    def _learners(self) -> list[tuple[str, LearningFacts]]:
        return [
            (name, shown.facts.learning)
            for name, shown in sorted(self._shown.items(), key=lambda known: known[0])
            if shown.facts.learning is not None
            and shown.facts.learning.rounds
            and shown.health not in GONE
        ][:MOST_LEARNERS]

    def _offenders(self, now: float) -> list[dict[str, str]]:
        """Who is not believed, and why, without those that have been quiet for a minute."""
        marked = [(n.node, _offence(n, now)) for n in self.fleet.nodes.values() if n.offences]
        nameless = [(n, f"an id that no node may have ({e[0]})") for n, e in self._nameless.items()]
        return [{"name": name, "reason": reason} for name, reason in marked + nameless if reason]

    def _note_nameless(self, sender: str, now: float) -> None:
        name = one_line(sender[:LONGEST_NAME])
        count, _ = self._nameless.pop(name, (0, now))
        while len(self._nameless) >= MOST_NAMELESS:
            self._nameless.pop(next(iter(self._nameless)))
        self._nameless[name] = (count + 1, now)

    def _note_minted(self, news: NewsEntry, document: Mapping[str, Any]) -> None:
        accuracy, weights = document.get("accuracy"), document.get("weights")
        if news.kind != "learning" or document.get("what") != "minted":
            return
        if isinstance(weights, int) and isinstance(accuracy, int | float) and 0 <= accuracy <= 1:
            model = news.model or self._model_of(news.teller)
            if model and (model in self._minted or len(self._minted) < MOST_MODELS):
                minted = self._minted.setdefault(model, deque(maxlen=MOST_MINTED))
                minted.append({"weights": weights, "accuracy": accuracy, "at": news.at})

    def _model_of(self, node: str) -> str:
        shown = self._shown.get(node)
        return shown.facts.model if shown is not None else ""


def _count(shown: _Shown, now: float) -> None:
    present = set()
    for stage in shown.facts.stages:
        key = (stage.version, stage.stage)
        present.add(key)
        shown.rates.setdefault(key, Rate()).read(now, stage.served)
    shown.rates = {key: rate for key, rate in shown.rates.items() if key in present}


def _rate(shown: _Shown, node: FleetNode) -> float | None:
    return None if shown.health in GONE else rounded(node.rate)


def _offence(node: FleetNode, now: float) -> str:
    marks = node.marks(now)
    told = (f"{kind}: {text} ({node.offences[kind].count})" for kind, text in marks.items())
    return one_line("; ".join(told))


def _node_point(shown: _Shown, node: FleetNode) -> list[float | None]:
    if shown.health in GONE:
        return [None] * len(NODE_FIGURES)
    stages = shown.facts.stages
    return [
        node.rate,
        _most(stage.queue[1] for stage in stages),
        _most(stage.compute[0] for stage in stages),
        _most(stage.compute[1] for stage in stages),
        float(sum(stage.waiting for stage in stages)),
        shown.facts.rss,
    ]


def _most(figures: Iterable[float | None]) -> float | None:
    return max((figure for figure in figures if figure is not None), default=None)


def _model_point(pipeline: Mapping[str, Any]) -> list[float | None]:
    answers = pipeline["answers"] or {}
    return [
        pipeline["rate"],
        pipeline["p50"],
        pipeline["p99"],
        answers.get("p50"),
        answers.get("p99"),
    ]


def _served(desired: Mapping[str, Any]) -> dict[str, float]:
    """Shares in percent, by version; of a desired state that the registry has checked."""
    return {str(e["version"]): float(e.get("share", 100)) for e in desired.get("serve", ())}


def _token(value: object) -> str:
    return value if isinstance(value, str) and TOKEN.fullmatch(value) is not None else ""


def _parsed(data: bytes | memoryview) -> dict[str, Any]:
    """A JSON object; an empty one where the bytes are none."""
    try:
        document = json.loads(bytes(data))
    except NO_DOCUMENT:
        return {}
    return document if isinstance(document, dict) else {}


def _noted(pipelines: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """A problem for each note that warns."""
    for pipeline in pipelines:
        of = pipeline["model"], pipeline["version"]
        for note in pipeline["notes"]:
            if note["warns"]:
                line = ModelNote(*of, note["about"], note["cells"]).line()
                yield problem("warn", line, model=of[0])


def _complaint(server: Mapping[str, Any]) -> list[dict[str, str]]:
    """What an embedded server's supervisor complains of."""
    if server.get("state") == "away":
        return [problem("bad", "the server is away; its supervisor starts it again")]
    if server.get("store") in ("full", "gone"):
        text = f"the server's store is {server['store']}: pushes stop, requests go on"
        return [problem("bad", text)]
    return []
