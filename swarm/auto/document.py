"""The plan in force of a model version, as it stands in the mesh's desired state:

    {"v": 1, "model": "resnet", "version": "1", "number": 3, "proposer": "auto-01J…",
     "reason": "a new node makes it 40 % faster", "at": "2026-01-01T12:00:00.000Z", "frozen": false,
     "period_us": 9100,
     "slots": [{"first": 1, "last": 3, "node": "auto-01J…", "compute_us": 8600, "need": 90000000,
                "replicas": 1, "link_bytes": 262144}, …]}

A *slot* is a range of consecutive stages that one node serves. Ranges ascend and do not overlap;
stages between them are left to nodes that were named by hand. `number` grows by one with each plan,
and begins again behind the largest: whoever writes that one keeps nobody from the next.
Nobody signs a plan: whatever stands in it moves work, and changes no result, since a stage is the
same function on every node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swarm.errors import InvalidArgument
from swarm.subjects import TOKEN


class BadPlan(InvalidArgument):
    """A document that is no plan; the nodes go by the one before."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"plan refused: {reason}")
        self.reason = reason


FORMAT = 1
MOST_BYTES = 256 << 10  # of a document
MOST_SLOTS = 256
MOST_STAGE = 256  # as many as gossip names of one version
MOST_REPLICAS = 64
MOST_NUMBER = 1 << 53
MOST_REASON = 300  # characters
MOST_OUTLINE = 400  # characters


@dataclass(frozen=True, slots=True)
class PlanSlot:
    """Stages `first` to `last`, both included.

    node: for which the plan was computed; any other one that fits may fill it, "" for no choice.
    compute_us: microseconds that a request is expected to take there, 0 where nobody knows. need:
    bytes of memory that its stages take. replicas: nodes that shall fill it. link_bytes: of a
    request's tensors that come to it and go from it, where no neighbour is on its node's host.
    """

    first: int
    last: int
    node: str = ""
    compute_us: int = 0
    need: int = 0
    replicas: int = 1
    link_bytes: int = 0

    @property
    def stages(self) -> range:
        return range(self.first, self.last + 1)

    def document(self) -> dict[str, Any]:
        """As it stands in the plan."""
        return {
            "first": self.first,
            "last": self.last,
            "node": self.node,
            "compute_us": self.compute_us,
            "need": self.need,
            "replicas": self.replicas,
            "link_bytes": self.link_bytes,
        }


@dataclass(frozen=True, slots=True)
class PlanInForce:
    """A plan that passed `parse_plan`. period_us: microseconds from one request to the next at its
    busiest slot, as predicted; 0 where nobody knows. at: RFC 3339. frozen: no node proposes
    another one."""

    model: str
    version: str
    number: int
    slots: tuple[PlanSlot, ...]
    proposer: str = ""
    reason: str = ""
    at: str = ""
    frozen: bool = False
    period_us: int = 0

    def document(self) -> dict[str, Any]:
        """As it stands in desired state."""
        return {
            "v": FORMAT,
            "model": self.model,
            "version": self.version,
            "number": self.number,
            "proposer": self.proposer,
            "reason": self.reason[:MOST_REASON],
            "at": self.at,
            "frozen": self.frozen,
            "period_us": self.period_us,
            "slots": [slot.document() for slot in self.slots],
        }

    def encode(self) -> bytes:
        """The bytes of its key. Raises `BadPlan` for what nobody would take."""
        document = self.document()
        parse_plan(document)
        return json.dumps(document).encode()

    def of_stage(self, stage: int) -> int | None:
        """The slot that holds a stage; None where no slot does."""
        found = (n for n, slot in enumerate(self.slots) if slot.first <= stage <= slot.last)
        return next(found, None)


def next_number(number: int) -> int:
    """Of the plan behind the one with this number; 0 stands for none."""
    return number % MOST_NUMBER + 1


def outline(plan: PlanInForce | None) -> str:
    """The slots of a plan in one line, such as "1-3 auto-a, 4-8 auto-b x2"; "" without a plan. A
    line of more than `MOST_OUTLINE` characters is cut."""
    if plan is None:
        return ""
    parts = []
    for slot in plan.slots:
        times = f"x{slot.replicas}" if slot.replicas > 1 else ""
        parts.append(" ".join(filter(None, (f"{slot.first}-{slot.last}", slot.node, times))))
    line = ", ".join(parts)
    return line if len(line) <= MOST_OUTLINE else f"{line[: MOST_OUTLINE - 3]}..."


def read_plan(data: bytes) -> PlanInForce:
    """The plan in the bytes of its key. Raises `BadPlan`."""
    if len(data) > MOST_BYTES:
        raise BadPlan(f"it has {len(data)} bytes, of {MOST_BYTES} at most")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise BadPlan("it is no JSON") from None
    return parse_plan(document)


def parse_plan(document: Any) -> PlanInForce:
    """The plan in a parsed JSON document; unknown fields are ignored. Raises `BadPlan`."""
    if not isinstance(document, Mapping):
        raise BadPlan("it is no object")
    if document.get("v") != FORMAT:
        raise BadPlan(f"its format is {document.get('v')!r}, and this program reads {FORMAT}")
    names = {}
    for name in ("model", "version"):
        value = document.get(name)
        if not isinstance(value, str) or TOKEN.fullmatch(value) is None:
            raise BadPlan(f"{name}: letters, digits, '_' or '-'")
        names[name] = value
    texts = {}
    for name in ("proposer", "reason", "at"):
        value = document.get(name, "")
        if not isinstance(value, str) or len(value) > MOST_REASON:
            raise BadPlan(f"{name}: a text of at most {MOST_REASON} characters")
        texts[name] = value
    frozen = document.get("frozen", False)
    if not isinstance(frozen, bool):
        raise BadPlan("frozen: true or false")
    return PlanInForce(
        **names,
        number=_whole(document, "number", 1, MOST_NUMBER),
        slots=_slots(document.get("slots")),
        **texts,
        frozen=frozen,
        period_us=_whole(document, "period_us", 0, MOST_NUMBER, 0),
    )


def _slots(value: Any) -> tuple[PlanSlot, ...]:
    if not isinstance(value, list | tuple) or len(value) > MOST_SLOTS:
        raise BadPlan(f"slots: a list of at most {MOST_SLOTS}")
    slots: list[PlanSlot] = []
    for index, entry in enumerate(value):
        path = f"slots[{index}]"
        if not isinstance(entry, Mapping):
            raise BadPlan(f"{path}: an object")
        node = entry.get("node", "")
        if not isinstance(node, str) or (node and TOKEN.fullmatch(node) is None):
            raise BadPlan(f"{path}.node: a node's id, or nothing")
        least = slots[-1].last + 1 if slots else 1
        first = _whole(entry, "first", least, MOST_STAGE, path=path)
        slots.append(
            PlanSlot(
                first,
                _whole(entry, "last", first, MOST_STAGE, path=path),
                node,
                _whole(entry, "compute_us", 0, MOST_NUMBER, 0, path),
                _whole(entry, "need", 0, MOST_NUMBER, 0, path),
                _whole(entry, "replicas", 1, MOST_REPLICAS, 1, path),
                _whole(entry, "link_bytes", 0, MOST_NUMBER, 0, path),
            )
        )
    return tuple(slots)


def _whole(
    document: Mapping[str, Any],
    name: str,
    least: int,
    most: int,
    default: int | None = None,
    path: str = "",
) -> int:
    value = document.get(name, default)
    if type(value) is not int or not least <= value <= most:
        where = f"{path}.{name}" if path else name
        raise BadPlan(f"{where}: a whole number from {least} to {most}, not {value!r}")
    return value
