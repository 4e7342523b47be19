"""One stage of a language model on one node: messages in, runs in a thread, messages out.

All decisions are those of `swarm.language`; here are the sockets, the thread and the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from nodes.language.draft_model import DraftModel
from nodes.language.members import Ran, run_members
from nodes.language.prompts import characters, with_ids, with_sampling
from nodes.language.schemas import SchemaReader, checked
from nodes.stage.counters import histogram, latencies
from nodes.stage.worker import Worker
from shards.errors import ModelError
from shards.language.grammar import Grammars
from shards.language.kv_stage import KvStage
from shards.language.texts import Texts
from swarm.errors import DecodeError, Internal, ResourceExhausted, SwarmError
from swarm.fleet.advertised import StagePeer
from swarm.flow.latency import LatencyWindow, Usual
from swarm.language.admission import WaitingRequest
from swarm.language.choice import SlotCandidate
from swarm.language.effects import Ended, Guessing, Pass, Tell
from swarm.language.head import HeadCore
from swarm.language.limits import USUAL, LanguageLimits, Shape
from swarm.language.prefixes import PrefixCopy
from swarm.language.request import GenerateRequest
from swarm.language.stage import StageCore
from swarm.language.steps import Forward, Gone, PassedRequest, decode_words, encode_words
from swarm.language.subjects import LanguageSubjects
from swarm.language.turns import StageRun
from swarm.link import LinkMessage
from swarm.mesh import Mesh
from swarm.model import ModelInfo
from swarm.requests.infer_service import service_error
from swarm.wire.maps import pack
from swarm.wire.tensors import Part

log = logging.getLogger("swarm.language")

TICK = 0.05  # seconds, while there are sessions
INLINE = 4096  # characters; a longer text is made token ids of in a thread
INLINE_BELOW = 0.001  # seconds; a shorter run costs less than a thread and back
KEEPS_WAY = 0.05  # seconds; behind a message that went by the server others do: none overtakes it
LARGEST = 512 << 10  # bytes of steps in one message
PEERS_FOR = 0.1  # seconds for which the nodes of a stage are remembered
GONE = b"503"  # the server's word that nobody listens


@dataclass(frozen=True, slots=True)
class _Peers:
    """Nodes of one stage as gossip knew them at `at`."""

    at: float
    candidates: tuple[SlotCandidate, ...]
    inboxes: dict[str, str]  # of those on this host, by node


class GenerationServer:
    """`start`, then `drain` and `close`. peers(stage): the living nodes of a stage. texts: of the
    version, None where it has none. end_tokens: ids that end every answer. on_ended: is
    told of each session that ends at its head. grammars: of the last stage, None where it has no
    library for them. draft: of stage 1, None where no model guesses."""

    def __init__(
        self,
        mesh: Mesh,
        info: ModelInfo,
        stage: int,
        node: str,
        decoder: KvStage,
        peers: Callable[[int], Sequence[StagePeer]],
        limits: LanguageLimits = USUAL,
        texts: Texts | None = None,
        end_tokens: tuple[int, ...] = (),
        on_ended: Callable[[Ended], None] | None = None,
        grammars: Grammars | None = None,
        draft: DraftModel | None = None,
    ) -> None:
        self._on_ended, self._draft = on_ended, draft
        self.end_tokens, self.texts = end_tokens, texts
        decode = None if texts is None else texts.tokenizer.decode
        self.info, self.stage = info, stage
        self.decoder = decoder
        self.turns = LatencyWindow()
        self._mesh, self._link, self._node = mesh, mesh.link, node
        self._subjects = LanguageSubjects.of(mesh.subjects)
        self._known_peers = peers
        self._loop = asyncio.get_running_loop()
        self._worker = Worker(self._loop, f"generation-{stage}")
        self._usual = Usual(start=INLINE_BELOW)
        self._host = mesh.lender.host
        self._peers: dict[int, _Peers] = {}
        self._busy = False
        self._emptied = asyncio.Event()  # of sessions, while it drains
        self._grammars = grammars
        self._schemas: set[str] = set()  # to be compiled before the next run
        self._without: dict[int, Exception] = {}  # slots whose beginning could not be copied
        self._told = False  # `_after` is on its way
        self._due = False  # a look at what is to be done is on its way
        self._ticking: asyncio.TimerHandle | None = None
        self._late_guess: asyncio.TimerHandle | None = None  # one guess is made at a time
        self._sids: list[int] = []
        self._preparing: set[asyncio.Task[GenerateRequest | SwarmError]] = set()
        self._hears: dict[tuple[str, int], str] = {}  # where a node's words come, by node and stage
        self._watches: dict[str, str] = {}  # where the server says that a client is gone
        self._by_server: dict[str, float] = {}  # until when messages to a node take that way
        self._passed: dict[str, list[Pass]] = {}  # requests that were passed to a node lately
        self.malformed = 0
        shape = Shape(
            decoder.width,
            decoder.context,
            decoder.slots,
            decoder.kv_bytes_per_token,
            decoder.vocabulary,
        )
        read = SchemaReader(grammars, node)
        self.core: StageCore
        if stage == 1:
            self.core = HeadCore(
                info.last,
                node,
                shape,
                self._candidates,
                self._link.expect(self._on_words),
                info.version,
                info.tokenizer,
                limits,
                decode,
                read,
                has_draft_model=draft is not None,
            )
        else:
            self.core = StageCore(
                stage, info.last, node, shape, self._candidates, limits, decode, read
            )

    # --- life -------------------------------------------------------------------------

    @property
    def subject(self) -> str:
        """Where this node takes steps."""
        return self._subjects.steps(self.info.model, self.info.version, self.stage, self._node)

    def start(self) -> None:
        """Take steps from now on."""
        self._sids.append(self._link.subscribe(self.subject, self._on_message))
        self._mesh.socket.listen(self.subject, self._on_datagram)

    async def drain(self, timeout: float) -> None:
        """Take no new session, let other nodes go on with those that are here, and wait up to
        `timeout` seconds for those that stay."""
        self.core.drain()
        self._emptied.clear()
        if isinstance(self.core, HeadCore):
            self.core.hand_over(time.monotonic())
        self._after()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._emptied.wait()

    def stop(self) -> None:
        """Take no steps any more."""
        for sid in self._sids:
            self._link.unsubscribe(sid)
        self._mesh.socket.forget(self.subject)
        for task in self._preparing:
            task.cancel()
        for reply in (*self._hears.values(), *self._watches.values()):
            self._link.forget(reply)
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        if self._late_guess is not None:
            self._late_guess.cancel()

    def close(self) -> None:
        """Free the thread and the decoder. Blocks for the present run."""
        self._worker.close()
        self.decoder.close()
        if self._draft is not None:
            self._draft.close()

    # --- in ---------------------------------------------------------------------------

    def ask(self, request: GenerateRequest, reply: str) -> None:
        """A client asks; this is a node of stage 1."""
        assert isinstance(self.core, HeadCore)
        self.core.ask(request, reply, time.monotonic())
        if not self._told:  # what several requests come to leaves together
            self._told = True
            self._loop.call_soon(self._after)

    def _prepare(self, each: WaitingRequest) -> None:
        """Make token ids of a request's text; of a long one, or one with a schema, in a thread:
        tokens of others go on."""
        if characters(each.request) <= INLINE and not each.request.schema:
            self._prepared(each, _caught(self._with_ids, each.request))
        else:
            work = asyncio.to_thread(_caught, self._with_ids, each.request)
            task = asyncio.create_task(work, name="prompt")
            self._preparing.add(task)
            task.add_done_callback(self._preparing.discard)
            task.add_done_callback(partial(self._prepared_aside, each))

    def _prepared_aside(
        self, each: WaitingRequest, task: asyncio.Task[GenerateRequest | SwarmError]
    ) -> None:
        if not task.cancelled():
            self._prepared(each, task.result())
            self._after()

    def _prepared(self, each: WaitingRequest, found: GenerateRequest | SwarmError) -> None:
        assert isinstance(self.core, HeadCore)
        now = time.monotonic()
        if isinstance(found, SwarmError):
            self.core.unprepared(each.request, each.reply, found)
        else:
            self.core.prepared(found, each.reply, now)

    def _with_ids(self, request: GenerateRequest) -> GenerateRequest:
        """The request with ids as its prompt, and a seed. Raises `InvalidArgument`."""
        request = with_ids(request, self.texts, f"{self.info.model}@{self.info.version}")
        request = with_sampling(request.joined(), self.texts)
        if request.schema:
            checked(request.schema)
            self._compile(request.schema)
        if not request.has_seed:
            sampling = replace(request.sampling, seed=secrets.randbits(32))
            request = replace(request, sampling=sampling, has_seed=True)
        stop_ids = tuple(dict.fromkeys([*request.stop_ids, *self.end_tokens]))
        return replace(request, stop_ids=stop_ids)

    def cancel(self, session: str) -> None:
        """Nobody waits for a session's tokens any more. session: the nodes' name of it, which only
        they and its client know."""
        if session in self.core.sessions:
            self.core.counts["cancelled"] += 1
        self.core.close(session)
        self._after()

    def node_gone(self, node: str) -> None:
        """A node has died or left."""
        self._peers.clear()
        self.core.gone(node, time.monotonic())
        self._after()

    def _on_message(self, message: LinkMessage) -> None:
        self._take(message.data)

    def _on_datagram(self, data: bytes, sent: int, reply: str) -> None:
        self._take(data)

    def _take(self, data: bytes | memoryview) -> None:
        try:
            message = Forward.decode(bytes(data))
        except DecodeError as error:
            self.malformed += 1
            log.warning("steps of stage %d are malformed: %s", self.stage, error)
            return
        if self._grammars is not None:
            self._schemas |= {s.opening.schema for s in message.steps if s.opening is not None}
            self._schemas.discard("")
        now = time.monotonic()
        for ask in message.asks:
            if isinstance(self.core, HeadCore):
                self.core.ask(ask.request, ask.reply, now)
        self.core.take(message, now)
        self._after()

    def _on_words(self, message: LinkMessage, node: str = "") -> None:
        """Words of a later stage; or the server's, that `node` listens no more."""
        now = time.monotonic()
        if message.status == GONE:
            self._nobody(node, now)
        elif message.data:
            try:
                said_by, words = decode_words(message.data)
            except DecodeError as error:
                self.malformed += 1
                log.warning("words to stage %d are malformed: %s", self.stage, error)
                return
            self.core.heard(said_by, words, now)
        self._after()

    def _nobody(self, node: str, now: float) -> None:
        self._peers.clear()
        self.core.gone(node, now)
        for each in self._passed.pop(node, []):
            assert isinstance(self.core, HeadCore)
            self.core.ask(each.request, each.reply, now, others=False)

    def _on_client(self, message: LinkMessage, session: str) -> None:
        """The server says that nobody reads a session's tokens."""
        if message.status == GONE and (found := self.core.sessions.get(session)) is not None:
            self.core.counts["gone"] += 1
            if self.stage > 1:
                self._send_words(found.opening.head, [Gone(session)])
            self.core.close(session)
            self._after()

    # --- turns ------------------------------------------------------------------------

    def _after(self) -> None:
        """Send what there is to send, and compute what there is to compute."""
        self._told = False
        self._flush()
        while prepares := self.core.prepares():
            for each in prepares:
                self._prepare(each)
            self._flush()
        if self.core.draining and self.core.is_idle:
            self._emptied.set()
        if not self._busy and not self._due:
            self._due = True
            self._loop.call_soon(self._turn)
        if self._ticking is None and not self.core.is_idle:
            self._ticking = self._loop.call_later(TICK, self._tick)

    def _tick(self) -> None:
        self._ticking = None
        self.core.tick(time.monotonic())
        gone = [key for key in self._watches if key not in self.core.sessions]
        for key in gone:
            self._link.forget(self._watches.pop(key))
        if self._draft is not None:
            self._draft.keep_only(self.core.sessions)
        self._after()

    def _turn(self) -> None:
        # Steps that came while others were computed share this turn.
        self._mesh.socket.take_waiting()
        self._due = False
        if self._busy:
            return
        runs = self.core.plan(time.monotonic())
        if not runs:
            return
        self._busy = True
        copies, schemas = self.core.copies(), self._schemas
        self._schemas = set()
        work = partial(self._compute, copies, schemas, runs)
        if self._usual.ewma < INLINE_BELOW and _decodes(runs) and not (copies or schemas):
            began = time.perf_counter()
            parts = work()
            self._computed(runs, parts, None, time.perf_counter() - began)
        else:
            self._worker.submit(work, partial(self._computed, runs))

    def _compute(
        self, copies: Sequence[PrefixCopy], schemas: Collection[str], runs: Sequence[StageRun]
    ) -> list[Ran]:
        """In the thread, as a rule. A session that fails is none of the others' fault."""
        for schema in schemas:
            self._compile(schema)
        for copy in copies:
            self._without.pop(copy.target, None)
            try:
                self.decoder.copy(copy.source, copy.target, copy.tokens)
            except Exception as error:
                log.error("a beginning could not be copied", exc_info=error)
                self._without[copy.target] = error
        parts = [part for run in runs for part in run_members(self.decoder, run, self._without)]
        for run in runs:
            for slot in range(run.slot, run.slot + len(run.steps)):
                self._without.pop(slot, None)
        return parts

    def _compile(self, schema: str) -> None:
        """In a thread: what the last stage needs of a schema is at hand then. What is wrong with
        one is told where a session asks for it."""
        if self._grammars is None:
            return
        with contextlib.suppress(ModelError):
            try:
                self._grammars.prepare(schema)
            except ModelError:
                raise
            except Exception:  # the runs of its turn are others'
                log.exception("a schema could not be prepared")

    def _computed(
        self,
        runs: Sequence[StageRun],
        parts: Sequence[Ran] | None,
        failure: Exception | None,
        seconds: float,
    ) -> None:
        now = time.monotonic()
        self._busy = False
        error = failure or RuntimeError("the run gave nothing")
        for run, result in [(run, error) for run in runs] if parts is None else parts:
            if isinstance(result, np.ndarray):
                self.core.computed(run, result, now)
            else:
                log.error("a run of stage %d failed", self.stage, exc_info=result)
                self.core.failed(run, result)
        if _decodes(runs):
            self._usual.add(seconds)
        self.turns.add(seconds, now)
        self._after()

    # --- out --------------------------------------------------------------------------

    def _flush(self) -> None:
        out = self.core.flush()
        # Words first: stage 1 waits for a token, and the client only reads it.
        for to, words in out.words.items():
            self._send_words(to, words)
        for node, message in out.forward.items():
            self._send_forward(node, self.stage + 1, message)
        for node, message in out.behind.items():
            self._send_forward(node, self.stage + 1, message)
        for each in out.passes:
            self._passed[each.node] = [*self._passed.get(each.node, [])[-15:], each]
            ask = PassedRequest(each.request, each.reply)
            self._send_forward(each.node, 1, Forward("", asks=[ask]))
        for guessing in out.guesses:
            self._guess(guessing)
        for tell in out.tells:
            try:
                self._tell(tell)
            except Exception:  # what cannot be written keeps nobody else's token back
                log.exception("a token of session %s could not be told", tell.doc.get("session"))
        if self._on_ended is not None:
            for ended in out.ended:
                self._on_ended(ended)
        self._link.push()

    def _guess(self, asked: Guessing) -> None:
        if self._draft is not None:
            self._draft.ask(asked, self._guessed)
            self._late_guess = self._loop.call_later(asked.within, self._after)

    def _guessed(self, asked: Guessing, ids: Sequence[int]) -> None:
        assert isinstance(self.core, HeadCore)
        if self._late_guess is not None:
            self._late_guess.cancel()
        self.core.guessed(asked, ids)
        self._after()

    def _send_forward(self, node: str, stage: int, message: Forward) -> None:
        message.back = self._heard_at(node, stage)
        for piece in message.pieces(LARGEST):
            self._send(node, stage, piece)

    def _heard_at(self, node: str, stage: int) -> str:
        found = self._hears.get((node, stage))
        if found is None:
            found = self._link.expect(partial(self._on_words, node=node))
            self._hears[(node, stage)] = found
        return found

    def _send(self, node: str, stage: int, message: Forward) -> None:
        subject = self._subjects.steps(self.info.model, self.info.version, stage, node)
        now = time.monotonic()
        inbox, parts = self._peers_of(stage).inboxes.get(node, ""), message.parts()
        if (
            inbox
            and (message.is_alone or self._by_server.get(node, 0.0) <= now)
            and self._mesh.socket.send(inbox, subject, parts)
        ):
            return
        self._by_server[node] = now + KEEPS_WAY
        with contextlib.suppress(SwarmError):  # it is sent again when the connection is back
            self._link.publish(subject, parts, message.back)

    def _send_words(self, to: str, words: Sequence[Any]) -> None:
        data = encode_words(self._node, words)
        inbox = to.rpartition(".")[0]
        if self._is_near(inbox) and self._mesh.socket.send(inbox, to, [data]):
            return
        with contextlib.suppress(SwarmError):  # who misses a word asks again
            self._link.publish(to, data)

    def _is_near(self, inbox: str) -> bool:
        before = max(1, self.stage - 1)
        return any(inbox in self._peers_of(stage).inboxes.values() for stage in {1, before})

    def _tell(self, tell: Tell) -> None:
        watch = self._watches.get(tell.session, "")
        if not watch and tell.error is None:
            watch = self._link.expect(partial(self._on_client, session=tell.session))
            self._watches[tell.session] = watch
        doc, headers = dict(tell.doc), b""
        if tell.error is not None:
            doc |= {"error": str(tell.error), "status": str(tell.error.status)}
            if isinstance(tell.error, ResourceExhausted) and tell.error.retry_after:
                doc["retry_after"] = tell.error.retry_after
            headers = service_error(tell.error.status, str(tell.error))
        parts: list[Part] = [json.dumps(doc).encode() if tell.json else pack(doc)]
        try:
            self._link.publish(tell.reply, parts, watch, headers)
            if tell.last:
                self._link.publish(tell.reply)
        except SwarmError as error:
            log.info("a token could not be sent: %s", error)

    # --- the nodes of other stages ------------------------------------------------------

    def _candidates(self, stage: int) -> tuple[SlotCandidate, ...]:
        return self._peers_of(stage).candidates

    def _peers_of(self, stage: int) -> _Peers:
        now = time.monotonic()
        found = self._peers.get(stage)
        if found is None or now - found.at > PEERS_FOR:
            peers = self._known_peers(stage)
            found = self._peers[stage] = _Peers(
                now,
                tuple(
                    SlotCandidate(each.node, each.priority, each.draining, *each.holds)
                    for each in peers
                ),
                {each.node: each.inbox for each in peers if self._host and each.host == self._host},
            )
        return found

    # --- figures ----------------------------------------------------------------------

    def status(self, now: float) -> dict[str, Any]:
        """Of a status document: counts since the start, times in milliseconds."""
        core = self.core
        doc: dict[str, Any] = {
            "stage": self.stage,
            "model": self.info.model,
            "version": self.info.version,
            "device": self.decoder.device,
            "slots": self.decoder.slots,
            "sessions": core.served,
            "followed": len(core.sessions) - core.served,
            "context": self.decoder.context,
            "kv_bytes": core.kv_bytes,
            "kept_bytes": core.kept_bytes,
            "turn_ms": latencies(self.turns, now),
            "counters": dict(core.counts) | {"malformed": self.malformed},
        }
        if isinstance(core, HeadCore):
            for name in ("first_token", "between_tokens"):
                window: LatencyWindow = getattr(core, name)
                doc |= {f"{name}_ms": latencies(window, now), f"{name}_s": histogram(window)}
        return doc


def _caught(
    work: Callable[[GenerateRequest], GenerateRequest], request: GenerateRequest
) -> GenerateRequest | SwarmError:
    """What the work gives, or its error, which the client is told."""
    try:
        return work(request)
    except SwarmError as error:
        return error
    except Exception:
        log.exception("a request for tokens failed")
        return Internal("a fault of the node, which its log describes")


def _decodes(runs: Sequence[StageRun]) -> bool:
    """Whether a turn has no chunk of a prompt; drafts do not make one."""
    return all(len(step.ids) == 1 for run in runs for _, step in run.steps)
