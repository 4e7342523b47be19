"""What a node records of requests: those that it answers for others, and those of its stages.

Each request has one record. The node that answers `infer.<model>`, or an edge for its captures,
knows the question, all attempts and the final answer: it records. A requester that sends to the
lanes itself is no node, so the stage that answers it records. That stage tells the two apart by the
subject of the answer: it lies below the inbox of a node that gossips that it records what it asks.
Where gossip is late both record, under one message id, and the server keeps the first.

Of a direct request an answer `UNAVAILABLE` is not recorded: its requester asks again, and only it
knows how that ends.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from nodes.audit import EndedSession
from nodes.connection.connection import Connection
from swarm.errors import DecodeError, Status, SwarmError
from swarm.flow.bucket import TokenBucket
from swarm.ids import ulid
from swarm.model import ModelInfo
from swarm.records.record import (
    MOST_HOPS,
    RECEIVED,
    STEPS,
    RecordEntry,
    agent_token,
    digest_of,
    hop_fields,
)
from swarm.records.recorder import Recorder
from swarm.subjects import TOKEN, as_token, second_inbox
from swarm.wire.hops import Hop
from swarm.wire.messages import Features, Request, Result

# Records a second, and at once: a flood of wrong keys must not push out what others asked.
RATE, BURST = 20.0, 100.0


class RecordRefusals:
    """`take` one; the fields of a record are those of `before` too."""

    def __init__(self) -> None:
        self._bucket = TokenBucket(RATE, BURST)
        self._unsaid = 0

    def take(self, now: float) -> bool:
        """Whether one more is recorded; else it is counted. now: seconds."""
        if self._bucket.take(now):
            return True
        self._unsaid += 1
        return False

    def before(self) -> dict[str, Any]:
        """Fields of the next record: how many before it have none."""
        unsaid, self._unsaid = self._unsaid, 0
        return {"refused_before": unsaid} if unsaid else {}


AUDITS = "audits"  # the gossip's key: the inbox of a node that records what it answers
ASKERS_EVERY = 0.2  # seconds between looks at who records what it asks


class NodeAudit:
    """The records of one node. Its methods cost no wait, and never raise.

    Where hops are stored, every stage adds the hash of what it received; the first stage does so in
    any case.
    """

    def __init__(self, connection: Connection) -> None:
        link, config = connection.mesh.link, connection.config
        self._node = connection.id
        self._events = connection.events
        self.recorder = Recorder(link, connection.mesh.subjects, self._node, self._warn)
        self._inbox = link.options.inbox if config.answers_requests else ""
        self._stored = not config.shares_memory
        self._view = connection.peers.view
        self._sessions, self._callers = RecordRefusals(), RecordRefusals()
        self._askers: frozenset[str] = frozenset()
        self._askers_at = 0.0
        if self._inbox:
            connection.membership.set(AUDITS, self._inbox)

    def _warn(self, text: str) -> None:
        self._events.tell("audit", {"detail": text})

    def status(self) -> dict[str, Any]:
        """Of the status document."""
        recorder = self.recorder
        counters = recorder.counters
        return {
            "audit": {
                "recorder": recorder.name,
                "sequence": recorder.sequence,
                "hash": recorder.head,
                "waiting": recorder.waiting,
                "written": counters.written,
                "elsewhere": counters.elsewhere,
                "lost": counters.lost,
            }
        }

    # --- a stage ----------------------------------------------------------------------------

    def received(
        self,
        features: Features,
        hop: dict[str, Any],
        steps: Mapping[str, Mapping[str, np.ndarray] | None],
    ) -> None:
        """Add the hashes of what a stage received, and of what the steps inside its run made, to
        its hop, before the hop travels."""
        if self._stored or features.stage == 1:
            hop[RECEIVED] = bytes.fromhex(digest_of(features.tensors))
        if steps:
            hop[STEPS] = {
                name: bytes.fromhex(digest_of(made)) if made is not None else b""
                for name, made in steps.items()
            }

    def answered(self, features: Features, outputs: Mapping[str, np.ndarray]) -> None:
        """The last stage has answered a request."""
        if not self._is_recorded_elsewhere(features.reply):
            self._of_stage(features, Status.OK, features.stage, outputs)

    def failed(self, features: Features, status: Status) -> None:
        """A stage has answered a request with a failure."""
        if status is not Status.UNAVAILABLE and not self._is_recorded_elsewhere(features.reply):
            self._of_stage(features, status, features.stage, None)

    def session(self, info: ModelInfo, ended: EndedSession) -> None:
        """A session of a language model has ended at its first stage, or was refused there: of a
        flood of refusals some are recorded, and the next one counts the others."""
        fields = _fields(info.model, info.version, ended.status, [])
        fields |= {"by": "stage", "prompt_tokens": ended.prompt, "tokens": ended.made}
        if ended.status is not Status.OK:
            fields |= {"stage": 1, "node": self._node}
            if not ended.prompt and not self._sessions.take(time.monotonic()):
                return
        fields |= self._sessions.before()
        agent = agent_token(ended.agent)
        self.recorder.offer(RecordEntry("request", agent, time.time(), ended.session, fields))

    def _of_stage(
        self,
        features: Features,
        status: Status,
        stage: int,
        outputs: Mapping[str, np.ndarray] | None,
    ) -> None:
        try:
            hops = [Hop.from_doc(hop) for hop in features.all_hops]
        except DecodeError:
            hops = []  # of a message that a hostile process wrote: the rest is on record
        fields = _fields(features.model, features.version, status, hops)
        fields |= {"by": "stage", "attempt": features.attempt}
        if status is not Status.OK:
            fields |= {"stage": stage, "node": self._node}
        for hop in hops:
            received = hop.extra.get(RECEIVED)
            if hop.stage == 1 and type(received) is bytes:
                fields["input"] = received.hex()
        agent = agent_token(features.agent)
        entry = RecordEntry("request", agent, time.time(), features.id, fields)
        self.recorder.offer(entry, {"output": outputs} if outputs is not None else {})

    def _is_recorded_elsewhere(self, reply: str) -> bool:
        """Whether the requester is a node that records what it asks."""
        now = time.monotonic()
        if now - self._askers_at > ASKERS_EVERY:
            self._askers_at = now
            inboxes = {
                inbox
                for peer in self._view().values()
                if peer.state not in ("dead", "left")
                and type(inbox := peer.values.get(AUDITS)) is str
            }
            inboxes = (inboxes | {self._inbox}) - {""}
            self._askers = frozenset(inboxes | set(map(second_inbox, inboxes)))
        return reply.rpartition(".")[0] in self._askers

    # --- an answerer ------------------------------------------------------------------------

    def asked(self, model: str, request: Request, result: Result) -> None:
        """A request of somebody else was answered. result: with the id that the mesh knows the
        request by; `request.id` is the requester's own."""
        fields = _fields(result.model or model, result.version, result.status, list(result.hops))
        fields |= {"by": "answerer", "attempt": result.attempt}
        fields |= {"latency_us": int(result.latency * 1e6), "degraded": result.degraded}
        if result.status is not Status.OK:
            fields |= {"stage": result.stage, "node": as_token(result.node)}
        if request.id != result.id and TOKEN.fullmatch(request.id):
            fields["client_id"] = request.id
        entry = RecordEntry("request", agent_token(request.agent), time.time(), result.id, fields)
        digests = {"input": request.inputs}
        if result.status is Status.OK:
            digests["output"] = result.outputs
        self.recorder.offer(entry, digests)

    def refused(self, agent: str, error: SwarmError, peer: str) -> None:
        """A door of this node refused somebody: see `nodes.audit`."""
        if self._callers.take(time.monotonic()):
            fields = {"status": str(error.status), "by": "gateway", "hops": []}
            fields |= {"model": "", "version": "", "peer": _address(peer), **self._callers.before()}
            self.recorder.offer(
                RecordEntry("request", agent_token(agent), time.time(), ulid(), fields)
            )

    def acted(self, act: str, fields: Mapping[str, Any]) -> None:
        """This node has decided something for the mesh. fields: texts of its own, and integers."""
        agent = agent_token(self._node)
        self.recorder.offer(RecordEntry("act", agent, time.time(), fields={**fields, "act": act}))

    # --- its end ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Write what is offered, until cancelled."""
        await self.recorder.run()

    async def close(self) -> None:
        """Write the rest, and the chain's end."""
        await self.recorder.close(RecordEntry("end", agent_token(self._node), time.time()))


def _fields(model: str, version: str, status: Status, hops: list[Hop]) -> dict[str, Any]:
    return {
        "model": as_token(model),
        "version": as_token(version),
        "weights": max([hop.weights for hop in hops], default=0),
        "status": str(status),
        "hops": [hop_fields(hop) for hop in hops[:MOST_HOPS]],
    }


def _address(peer: str) -> str:
    """An address, "" for what is none."""
    try:
        return str(ipaddress.ip_address(peer))
    except ValueError:
        return ""
