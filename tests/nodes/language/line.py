"""All stages of a language model in one process: real decisions, messages, runs and layers, no
clock and no socket. What goes from stage to stage is encoded and decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from zoo.language.decoder_graph import DecoderShape, Form, decoder

from nodes.language.members import run_members
from shards.language.kv_stage import KvStage
from shards.language.load import load_decoder_stage
from shards.split.split import SplitResult, split
from swarm.errors import Status
from swarm.language.admission import Shares
from swarm.language.choice import SlotCandidate
from swarm.language.head import HeadCore
from swarm.language.limits import LanguageLimits, Shape
from swarm.language.request import GenerateRequest
from swarm.language.stage import StageCore
from swarm.language.steps import Forward, TokenStep, decode_words, encode_words

VOCABULARY, CONTEXT, SLOTS, STAGES = 256, 128, 8, 3
Spoil = Callable[[int, TokenStep], TokenStep]  # a step on its way to a stage


@cache
def small(form: Form = "genai") -> SplitResult:
    shape = DecoderShape(layers=3, vocabulary=VOCABULARY, context=CONTEXT)
    return split(decoder(shape, form=form), name="small", stages=STAGES, profile=False)


class Spoiled:
    """A stage whose run with one of these sessions raises, or gives what is no number. core: knows
    the sessions' slots."""

    def __init__(self, stage: KvStage, bad: Sequence[str], what: Exception | float) -> None:
        self._stage, self._bad, self._what = stage, bad, what
        self.core: StageCore | None = None
        self.first, self.last, self.device = stage.first, stage.last, stage.device
        self.width, self.context, self.slots = stage.width, stage.context, stage.slots
        self.kv_bytes_per_token, self.vocabulary = stage.kv_bytes_per_token, stage.vocabulary
        self.close = stage.close

    def run(
        self, rows: np.ndarray, slot: int, positions: np.ndarray, *, logits: int = 1
    ) -> np.ndarray:
        hit = [at - slot for at in self._slots() if slot <= at < slot + len(rows)]
        if hit and isinstance(self._what, Exception):
            # As a library that fails in the middle: the states of those before are written.
            if hit[0]:
                self._stage.run(rows[: hit[0]], slot, positions[: hit[0]], logits=logits)
            raise self._what
        made = self._stage.run(rows, slot, positions, logits=logits)
        if hit:
            made = made.copy()
            made[hit] = self._what
        return made

    def copy(self, source: int, target: int, tokens: int) -> None:
        fails = source != target and isinstance(self._what, Exception)
        if fails and target in self._slots():
            raise self._what
        self._stage.copy(source, target, tokens)

    def _slots(self) -> list[int]:
        assert self.core is not None
        sessions = self.core.sessions
        return [sessions[key].slot for key in self._bad if key in sessions]


class Line:
    """stages: by their number, in place of the real ones. spoil: changes steps between stages."""

    def __init__(
        self,
        form: Form = "genai",
        spoiled: dict[int, Callable[[KvStage], Spoiled]] | None = None,
        spoil: Spoil = lambda stage, step: step,
    ) -> None:
        self._spoil = spoil
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, Any] = {}
        self.largest = 0  # sessions of one run
        self.cores: dict[int, StageCore] = {}
        self.decoders: dict[int, KvStage] = {}
        result = small(form)
        for stage in range(1, STAGES + 1):
            decoder: Any = load_decoder_stage(
                result.manifest, stage, result.files.__getitem__, slots=SLOTS
            )
            if spoiled and stage in spoiled:
                decoder = spoiled[stage](decoder)
            shape = Shape(
                decoder.width,
                decoder.context,
                decoder.slots,
                decoder.kv_bytes_per_token,
                decoder.vocabulary,
            )
            core = self._core(stage, shape)
            if isinstance(decoder, Spoiled):
                decoder.core = core
            self.cores[stage], self.decoders[stage] = core, decoder

    def _core(self, stage: int, shape: Shape) -> StageCore:
        limits = LanguageLimits(shares=Shares(share=1.0))
        if stage == 1:
            return HeadCore(STAGES, "n1", shape, self._peers, "words.1", limits=limits)
        return StageCore(stage, STAGES, f"n{stage}", shape, self._peers, limits)

    def _peers(self, stage: int) -> list[SlotCandidate]:
        return [SlotCandidate(f"n{stage}")]

    def answers(self, requests: Sequence[GenerateRequest], replies: dict[str, str]) -> None:
        """Ask for all at once, and go on until nothing is left to do. replies: other inboxes than
        the session's name."""
        head = self.cores[1]
        assert isinstance(head, HeadCore)
        for request in requests:
            # As it comes by the wire.
            read = GenerateRequest.decode(request.encode())
            head.ask(read, replies.get(request.session, request.session), 0.0)
        while self._step():
            pass

    def _step(self) -> bool:
        busy = False
        for stage, core in self.cores.items():
            for each in core.prepares():
                assert isinstance(core, HeadCore)
                core.prepared(each.request.joined(), each.reply, 0.0)
            busy |= self._deliver(stage, core)
            runs = core.plan(0.0)
            lacks: dict[int, Exception] = {}
            for copy in core.copies():
                try:
                    self.decoders[stage].copy(copy.source, copy.target, copy.tokens)
                except Exception as error:
                    lacks[copy.target] = error
            for run in runs:
                busy = True
                self.largest = max(self.largest, len(run.steps))
                for part, made in run_members(self.decoders[stage], run, lacks):
                    if isinstance(made, Exception):
                        core.failed(part, made)
                    else:
                        core.computed(part, made, 0.0)
            busy |= self._deliver(stage, core)
        return busy

    def _deliver(self, stage: int, core: StageCore) -> bool:
        out = core.flush()
        for message in out.forward.values():
            message.back = f"words.{stage}"
            message.steps = [self._spoil(stage + 1, step) for step in message.steps]
            data = b"".join(bytes(part) for part in message.parts())
            self.cores[stage + 1].take(Forward.decode(data), 0.0)
        for to, words in out.words.items():
            name, heard = decode_words(encode_words(f"n{stage}", words))
            self.cores[int(to.rpartition(".")[2])].heard(name, heard, 0.0)
        for tell in out.tells:
            if tell.error is not None:
                self.ends[tell.session] = tell.error
            elif "token" in tell.doc:
                self.tokens.setdefault(tell.session, []).append(tell.doc["token"])
                if tell.last:
                    self.ends[tell.session] = Status.OK
        return bool(out.forward or out.words or out.tells)
