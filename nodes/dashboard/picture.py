"""The fleet as it is known: everything that came, put together. Pure: no clock, no socket.

`take_…` and `tick` change the picture. `whole()` is all of it, for a browser that comes;
`changes()` is the difference to the last call, for those that are there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from nodes.dashboard.answers import Answers
from nodes.dashboard.facts import LearningFacts, NodeFacts, one_line, read_facts
from nodes.dashboard.health import Health, health_of, is_forgotten
from nodes.dashboard.history import History, Rate, rounded
from nodes.dashboard.intake import Intake, parsed
from nodes.dashboard.news import News, Newspaper
from nodes.dashboard.pipelines import NodeNow, pipelines_of
from nodes.dashboard.verdict import headline, problems_of, unreachable
from swarm.subjects import TOKEN

MOST_NODES = 2000
MOST_MODELS = 64
EVENTS_SHOWN = 300  # of the last events, to a browser that comes
NODE_FIGURES = ("rate", "queue_p99", "compute_p50", "compute_p99", "waiting", "rss")
MODEL_FIGURES = ("rate", "p50", "p99", "answer_p50", "answer_p99")
MOST_LEARNERS = 32  # whose curves are kept
MOST_MINTED = 200  # weight versions whose accuracies are kept, of a model


@dataclass(slots=True)
class _Known:
    """A node. heard, died, suspected, unready: moments in seconds."""

    facts: NodeFacts
    heard: float
    bytes: int
    died: float | None = None
    suspected: float | None = None
    unready: float | None = None
    rates: dict[tuple[str, int], Rate] = field(default_factory=dict)
    edge_rate: Rate = field(default_factory=Rate)
    history: History = field(default_factory=lambda: History(len(NODE_FIGURES)))
    health: Health = Health.BUSY

    def now(self) -> NodeNow:
        rates = {key: rate.value for key, rate in self.rates.items()}
        return NodeNow(self.facts, self.health, rates)

    def rate(self) -> float | None:
        """Requests a second: of the stages together, or of an edge."""
        if self.health in (Health.DEAD, Health.LEFT):
            return None
        if self.facts.edge:
            return self.edge_rate.value
        known = [value for rate in self.rates.values() if (value := rate.value) is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class LinkState:
    """Whether the mesh can be reached. since: ms since 1970. error: why not, for people."""

    connected: bool
    since: int
    url: str = ""
    error: str = ""


class Picture:
    """mesh: its name. wall: ms since 1970, for people. Each `now` is in seconds, monotonic."""

    def __init__(self, mesh: str, wall: Callable[[], int] = lambda: int(time.time() * 1e3)) -> None:
        self.mesh = mesh
        self.intake = Intake()
        self.newspaper = Newspaper()
        self.answers = Answers(self._model_of)
        self.link = LinkState(False, wall(), error="connecting")
        self._wall = wall
        self._nodes: dict[str, _Known] = {}
        self._desired: dict[str, dict[str, Any]] = {}
        self._objectives: dict[str, dict[str, Any]] = {}
        self._server: dict[str, Any] = {}
        self._models: dict[str, History] = {}
        self._curves: dict[str, History] = {}
        self._minted: dict[str, deque[dict[str, Any]]] = {}
        self._dirty: set[str] = set()
        self._gone: set[str] = set()
        self._told = 0  # the number of the last event in a change
        self._sent: dict[str, Any] = {}  # parts of the last change, to leave out equal ones
        self._points: dict[str, Any] = {}

    # --- what comes ---------------------------------------------------------------------

    def take_status(self, subject: str, data: bytes | memoryview, now: float) -> bool:
        """A message on a status subject; returns whether it changes how a node is."""
        document = self.intake.status(subject, data, now)
        if document is None:
            self._dirty.add(subject.rpartition(".")[2])
            return False
        facts = read_facts(document)
        name = facts.node
        known = self._nodes.get(name)
        if known is None:
            if len(self._nodes) >= MOST_NODES and not self._make_room():
                self.intake.note(name, f"more than {MOST_NODES} nodes", now)
                return False
            known = self._nodes[name] = _Known(facts, now, len(data))
        if facts.absurd:
            self.intake.note(name, f"absurd figures: {', '.join(facts.absurd)}", now)
        known.facts, known.heard, known.bytes = facts, now, len(data)
        known.unready = None if facts.state == "ready" else known.unready or now
        _count(known, now)
        self._dirty.add(name)
        return self._judge(known, now)

    def take_event(self, subject: str, data: bytes | memoryview, now: float) -> bool:
        """A message on an events subject; returns whether it is news that people want at once."""
        document = self.intake.event(subject, data, now)
        if document is None:
            return False
        news = self.newspaper.add(document, self._wall())
        self._heed(news, document, now)
        return True

    def take_past_event(self, document: dict[str, Any], at: int) -> None:
        """An event from before this process heard any. at: ms since 1970."""
        news = self.newspaper.add(document, at)
        self._note_minted(news, document)

    def take_result(self, data: bytes | memoryview, now: float) -> None:
        """A message on a results subject."""
        if self.answers.wanted(now) and len(data) <= 1 << 20:
            document = parsed(data)
            if document is not None:
                self.answers.take(document, now)

    def take_server(self, data: bytes | memoryview) -> None:
        """What an embedded server's supervisor says."""
        document = parsed(data) if len(data) <= 1 << 16 else None
        if document is None:
            return
        store = document.get("store")
        state = store.get("state") if isinstance(store, dict) else ""
        self._server = {
            "state": _word(document.get("state")),
            "store": _word(state),
            "restarts": r if isinstance(r := document.get("restarts"), int) and 0 <= r < 1e9 else 0,
        }

    def take_desired(self, model: str, document: dict[str, Any] | None) -> None:
        """A model's desired state, as the registry has checked it; None where it is gone."""
        if document is None:
            self._desired.pop(model, None)
        elif model in self._desired or len(self._desired) < MOST_MODELS:
            self._desired[model] = document

    def take_link(self, connected: bool, url: str, error: str) -> None:
        """The connection to the mesh came or went."""
        was = self.link
        since = was.since if was.connected == connected else self._wall()
        self.link = LinkState(connected, since, url, one_line(error)[:300])

    # --- time -----------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """A second has passed: nodes that are silent, points of the charts."""
        for name, known in list(self._nodes.items()):
            # While the mesh cannot be reached nobody is heard, and nobody is dead for that.
            if self.link.connected and self._judge(known, now):
                self._dirty.add(name)
            if is_forgotten(known.health, now - known.heard):
                del self._nodes[name]
                self._gone.add(name)
            known.history.add(_node_point(known))
        self.intake.forgive(now)
        self._points = {"models": {}, "learners": {}}
        if not self.link.connected:
            return
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
        self._curves = {n: curve for n, curve in self._curves.items() if n in self._nodes}

    # --- what goes out --------------------------------------------------------------------

    def whole(self, now: float) -> dict[str, Any]:
        """Everything, for a browser that comes."""
        return {
            "whole": True,
            "at": self._wall(),
            "mesh": self.mesh,
            "nodes": {name: self.row(name, now) for name in self._nodes},
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
        nodes = {name: self.row(name, now) for name in self._dirty if name in self._nodes}
        if nodes:
            frame["nodes"] = nodes
        if self._gone:
            frame["gone"] = sorted(self._gone)
        news = [n.as_doc() for n in self.newspaper.since(self._told)]
        if news:
            self._told = news[-1]["number"]
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
        known = self._nodes[name]
        facts, rates = known.facts, known.rates
        document = asdict(facts)
        document["stages"] = [
            asdict(stage) | {"rate": rounded(rates[stage.version, stage.stage].value)}
            for stage in facts.stages
        ]
        offence = self.intake.offenders.get(name)
        return document | {
            "health": known.health,
            "kind": known.now().kind(),
            "rate": rounded(known.rate()),
            "heard": self._wall() - int((now - known.heard) * 1e3),
            "offence": f"{offence.reason} ({offence.count})" if offence else "",
        }

    def history_of(self, node: str) -> dict[str, list[float | None]] | None:
        """The last minutes of a node, one point a second; None where it is not known."""
        known = self._nodes.get(node)
        if known is None:
            return None
        return dict(zip(NODE_FIGURES, known.history.columns(), strict=True))

    def model_names(self) -> list[str]:
        """The models that nodes tell of, and those whose desired state is known."""
        told = {known.facts.model for known in self._nodes.values() if known.facts.model}
        return sorted(told | set(self._desired))

    # --- inside ---------------------------------------------------------------------------

    def _parts(self, now: float) -> dict[str, Any]:
        pipelines = self._pipelines(now)
        current = [known.now() for known in self._nodes.values()]
        alive = [n for n in current if n.health not in (Health.DEAD, Health.LEFT)]
        problems = problems_of(
            current,
            pipelines,
            {model: frozenset(_served(doc)) for model, doc in self._desired.items()},
            self.intake.offenders,
            {name: now - known.heard for name, known in self._nodes.items()},
            {n: now - k.unready for n, k in self._nodes.items() if k.unready is not None},
            _complaint(self._server),
            self._objectives.values(),
        )
        stages = sum(len(pipeline["stages"]) for pipeline in pipelines)
        rate = sum(pipeline["rate"] or 0.0 for pipeline in pipelines)
        return {
            "link": asdict(self.link),
            "verdict": headline(problems, len(alive), stages, rate)
            if self.link.connected
            else unreachable(),
            "pipelines": pipelines,
            "models": self._model_rows(pipelines),
            "offenders": [
                {"name": name, "reason": offence.reason, "count": offence.count}
                for name, offence in self.intake.offenders.items()
            ],
            "server": self._server,
        }

    def _pipelines(self, now: float) -> list[dict[str, Any]]:
        pipelines = pipelines_of(known.now() for known in self._nodes.values())
        for pipeline in pipelines:
            model, version = pipeline["model"], pipeline["version"]
            pipeline["share"] = _served(self._desired.get(model, {})).get(version)
            pipeline["answers"] = self.answers.as_doc(model, now)
        return pipelines

    def _model_rows(self, pipelines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        names = {*self._desired, *(pipeline["model"] for pipeline in pipelines)}
        return [
            {
                "model": model,
                "serve": _served(self._desired.get(model, {})),
                "previous": _word(self._desired.get(model, {}).get("previous")),
                "policy": _word(self._desired.get(model, {}).get("policy")) or "pull",
                "known": model in self._desired,
                "objective": self._objectives.get(model),
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
            (name, known.facts.learning)
            for name, known in self._nodes.items()
            if known.facts.learning is not None
            and known.facts.learning.rounds
            and known.health not in (Health.DEAD, Health.LEFT)
        ][:MOST_LEARNERS]

    def _judge(self, known: _Known, now: float) -> bool:
        """Find out how a node is; returns whether it is not as it was."""
        health = health_of(known.facts.state, known.heard, known.died, known.suspected, now)
        changed = health is not known.health
        known.health = health
        return changed

    def _heed(self, news: News, document: dict[str, Any], now: float) -> None:
        """What an event changes in the picture."""
        known = self._nodes.get(news.node)
        if known is not None:
            if news.kind == "died":
                known.died = now
            elif news.kind == "suspected":
                known.suspected = now
            elif news.kind in ("refuted", "returned"):
                known.died = known.suspected = None
            self._judge(known, now)
            self._dirty.add(news.node)
        self._note_minted(news, document)

    def _note_minted(self, news: News, document: dict[str, Any]) -> None:
        accuracy, weights = document.get("accuracy"), document.get("weights")
        if news.kind != "learning" or document.get("what") != "minted":
            return
        if isinstance(weights, int) and isinstance(accuracy, int | float) and 0 <= accuracy <= 1:
            teller = self._nodes.get(news.teller)
            learning = teller.facts.learning if teller is not None else None
            model = learning.model if learning is not None else news.model
            if model and (model in self._minted or len(self._minted) < MOST_MODELS):
                minted = self._minted.setdefault(model, deque(maxlen=MOST_MINTED))
                minted.append({"weights": weights, "accuracy": accuracy, "at": news.at})

    def _model_of(self, node: str) -> str:
        known = self._nodes.get(node)
        return known.facts.model if known is not None else ""

    def _make_room(self) -> bool:
        """Forget one node that is gone; returns whether there was one."""
        for name, known in self._nodes.items():
            if known.health in (Health.DEAD, Health.LEFT):
                del self._nodes[name]
                self._gone.add(name)
                return True
        return False


def _count(known: _Known, now: float) -> None:
    present = set()
    for stage in known.facts.stages:
        key = (stage.version, stage.stage)
        present.add(key)
        known.rates.setdefault(key, Rate()).read(now, stage.served)
    known.rates = {key: rate for key, rate in known.rates.items() if key in present}
    if known.facts.edge:
        known.edge_rate.read(now, known.facts.edge["answered"])


def _node_point(known: _Known) -> list[float | None]:
    if known.health in (Health.DEAD, Health.LEFT):
        return [None] * len(NODE_FIGURES)
    stages = known.facts.stages
    return [
        known.rate(),
        _most(stage.queue[1] for stage in stages),
        _most(stage.compute[0] for stage in stages),
        _most(stage.compute[1] for stage in stages),
        float(sum(stage.waiting for stage in stages)),
        known.facts.rss,
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


def _word(value: object) -> str:
    return value if isinstance(value, str) and TOKEN.fullmatch(value) is not None else ""


def _complaint(server: Mapping[str, Any]) -> str:
    if server.get("state") == "away":
        return "the server is away; its supervisor starts it again"
    if server.get("store") in ("full", "gone"):
        return (
            f"the server's store is {server['store']}: pushes and promotions stop, requests go on"
        )
    return ""
