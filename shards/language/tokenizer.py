"""Text to token ids and back, by `tokenizers` (extra `language`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shards.errors import ModelError


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

    def id_of(self, token: str) -> int | None:
        """The id of a token as the vocabulary writes it."""
        found = self._inner.token_to_id(token)
        return None if found is None else int(found)
