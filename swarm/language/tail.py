"""What the last stage does beside its layers: it chooses tokens, and tells the client. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from swarm.errors import Internal, InvalidArgument
from swarm.language.effects import Outbox, Tell
from swarm.language.grammar import Grammar, Grammars
from swarm.language.request import MOST_PIECES
from swarm.language.sampling import Chosen, choose
from swarm.language.session import Session
from swarm.language.steps import Token
from swarm.language.text import Decode, GeneratedText


@dataclass(slots=True)
class _Told:
    """Of one session: its text so far, its grammar, and the tokens that were told, by index."""

    stream: GeneratedText | None
    grammar: Grammar | None = None
    tokens: dict[int, tuple[Token, dict[str, Any]]] = field(default_factory=dict)


class Tail:
    """decode: token ids as text; None without a tokenizer: clients get ids alone. grammars: by
    schema."""

    def __init__(self, node: str, decode: Decode | None, grammars: Grammars | None = None) -> None:
        self._node = node
        self._decode = decode
        self._grammars = grammars
        self._told: dict[str, _Told] = {}

    def choose(self, session: Session, index: int, logits: np.ndarray, out: Outbox) -> bool:
        """The id at `index`, to stage 1 and to the client; whether it is the last one. Raises
        `InvalidArgument` where the session's schema lets no token follow, or asks for too much, and
        `Internal` where the logits say nothing."""
        told = self._told.get(session.key)
        opening = session.opening
        done = index - opening.answer  # of the answer, before this one
        if told is None or (told.stream is not None and told.stream.pushed > done):
            told = self._told[session.key] = _Told(self._stream(session), self._grammar(session))
        before = session.ids[:index]
        allowed, first = None, opening.sampling.first
        if first is not None and index == opening.prompt:
            if first >= len(logits):
                raise InvalidArgument(f"first: {first} is no token of this model")
            allowed = np.array([first])
        elif told.grammar is not None:
            allowed = told.grammar.allowed(before[opening.answer :])
            allowed = allowed[allowed < len(logits)]
            if not len(allowed):
                raise InvalidArgument("schema: no token of this model can follow")
        sampling = opening.sampling
        # Of logits that are not all numbers the largest is none, nor is a greedy choice.
        are_all_told = sampling.temperature or sampling.alternatives is not None
        if are_all_told and not isfinite(logits.max()):
            raise _no_numbers()
        chosen = choose(logits, sampling, before, allowed)
        if not isfinite(logits[chosen.token]):
            raise _no_numbers()
        # A question of long ago may come late: what was told behind it since stays.
        session.ids[index : index + 1] = [chosen.token]
        text, finish = self._text(session, told, index)
        token = Token(session.key, index, chosen.token, finish)
        told.tokens[index] = (token, self._document(session, token, chosen, text))
        self._tell(session, told.tokens[index], out)
        return bool(finish)

    def repeat(self, session: Session, index: int, out: Outbox) -> bool:
        """Tell the id at `index` and those behind it again; whether it was chosen before."""
        told = self._told.get(session.key)
        if told is None or index not in told.tokens:
            return False
        while index in told.tokens:
            self._tell(session, told.tokens[index], out)
            index += 1
        return True

    def forget(self, key: str) -> None:
        """A session has ended here."""
        self._told.pop(key, None)

    def _stream(self, session: Session) -> GeneratedText | None:
        return None if self._decode is None else GeneratedText(self._decode, session.opening.stops)

    def _grammar(self, session: Session) -> Grammar | None:
        schema = session.opening.schema
        if not schema:
            return None
        if self._grammars is None:
            raise InvalidArgument(f"schema: {self._node} has no tokenizer to read it by")
        return self._grammars(schema)

    def _text(self, session: Session, told: _Told, index: int) -> tuple[str, str]:
        """The text that the id at `index` completes, and why it is the last one, if it is."""
        opening, stream = session.opening, told.stream
        generated = session.ids[opening.answer : index + 1]
        ends = generated[-1] in opening.stop_ids
        text = ""
        if stream is not None:
            for one in generated[stream.pushed : len(generated) - ends]:
                text = stream.push(one)
            if stream.stopped:
                return text, "stop"
            text = "" if ends else text
        ends = ends or (told.grammar is not None and told.grammar.is_whole(generated))
        if not ends and index + 1 - opening.prompt < opening.most:
            return text, ""
        text += "" if stream is None else stream.rest()
        return text, "stop" if ends else "length"

    def _document(
        self, session: Session, token: Token, chosen: Chosen, text: str
    ) -> dict[str, Any]:
        prompt = session.opening.prompt
        doc: dict[str, Any] = {
            "v": 1,
            "session": session.id,
            "seq": token.index - prompt,
            "token": token.token,
        }
        if self._decode is not None:
            doc["text"] = text
        if chosen.logprob is not None:
            doc["logprob"] = chosen.logprob
            doc["alternatives"] = [list(one) for one in chosen.alternatives]
            if self._decode is not None and len(chosen.alternatives) <= MOST_PIECES:
                ids = (chosen.token, *(one for one, _ in chosen.alternatives))
                doc["pieces"] = [self._decode([one]) for one in ids]
        if token.finish:
            doc["finish"] = token.finish
            made = token.index - prompt + 1
            doc["usage"] = {"prompt_tokens": prompt, "completion_tokens": made}
            doc["node"] = self._node
        return doc

    def _tell(self, session: Session, told: tuple[Token, dict[str, Any]], out: Outbox) -> None:
        opening, (token, doc) = session.opening, told
        out.word(opening.head, token)
        out.tells.append(
            Tell(session.key, opening.reply, doc, opening.json, last=bool(token.finish))
        )


def _no_numbers() -> Internal:
    return Internal(
        "the model gives no finite logits for the next token: its weights, or the hidden states of "
        "an earlier stage, are not finite"
    )
