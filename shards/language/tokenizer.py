"""Text to token ids and back, by `tokenizers` (extra `language`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shards.errors import ModelError

# Tokens that a text stream looks back on: more than any character's bytes have.
_LOOK_BACK = 8
_REPLACEMENT = "�"


class Tokenizer:
    """The tokenizer of a model version: the bytes of its `tokenizer.json`.

    Raises ModelError for a file that `tokenizers` refuses, and where the library is missing.
    """

    def __init__(self, data: bytes) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise ModelError(
                "texts need the library `tokenizers`: pip install 'swarm-mesh[language]'"
            ) from error
        try:
            self._inner: Any = tokenizers.Tokenizer.from_str(data.decode())
        except Exception as error:  # the library raises a bare Exception
            raise ModelError(f"tokenizer.json cannot be read: {error}") from error
        # A prompt is neither cut nor padded: a context that is too long is refused by its length.
        self._inner.no_truncation()
        self._inner.no_padding()

    @property
    def vocabulary(self) -> int:
        """The number of token ids, added ones included."""
        return int(self._inner.get_vocab_size())

    @property
    def largest(self) -> tuple[int, str] | None:
        """The largest id and its token; None for a tokenizer without tokens. Ids may have gaps."""
        known: dict[str, int] = self._inner.get_vocab(with_added_tokens=True)
        return max(((one, token) for token, one in known.items()), default=None)

    def to_json(self, *more: str) -> str:
        """As the library writes it, with `more` special tokens behind those that it has."""
        import tokenizers

        text: str = self._inner.to_str()
        if more:
            copied = tokenizers.Tokenizer.from_str(text)
            copied.add_special_tokens(list(more))
            text = copied.to_str()
        return text

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The token ids of a text. `special` adds those that begin or end each text of the model;
        a text of a chat template has them already."""
        return list(self._inner.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of token ids, without special tokens. Unknown ids have none."""
        return str(self._inner.decode([int(t) for t in tokens], skip_special_tokens=True))

    def token(self, token: int) -> str:
        """A token as the vocabulary writes it; "" for an unknown id."""
        return self._inner.id_to_token(int(token)) or ""

    def id_of(self, token: str) -> int | None:
        """The id of a token as the vocabulary writes it."""
        found = self._inner.token_to_id(token)
        return None if found is None else int(found)

    def stream(self) -> TextStream:
        """A new text that grows by token ids."""
        return TextStream(self)


class TextStream:
    """Text that grows token by token. Half a character waits until it is whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._sent = 0  # tokens whose text was given out

    def push(self, token: int) -> str:
        """The text that this token completes; "" while a character is not whole."""
        self._tokens.append(token)
        begin = max(0, self._sent - _LOOK_BACK)
        before = self._tokenizer.decode(self._tokens[begin : self._sent])
        now = self._tokenizer.decode(self._tokens[begin:])
        waits = len(self._tokens) - self._sent
        if len(now) <= len(before) or (now.endswith(_REPLACEMENT) and waits < _LOOK_BACK):
            return ""
        return self._take(now[len(before) :])

    def end(self) -> str:
        """The text that is left, with a sign where a character stayed half."""
        begin = max(0, self._sent - _LOOK_BACK)
        before = self._tokenizer.decode(self._tokens[begin : self._sent])
        return self._take(self._tokenizer.decode(self._tokens[begin:])[len(before) :])

    def _take(self, text: str) -> str:
        self._sent = len(self._tokens)
        # Only what is looked back on is kept: a session's length bounds no memory here.
        spare = max(0, self._sent - _LOOK_BACK)
        del self._tokens[:spare]
        self._sent -= spare
        return text
