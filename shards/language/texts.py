"""The texts of a language model's version: its tokenizer, its chat template, its habits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shards.errors import ModelError
from shards.language.chat_template import ChatTemplate
from shards.language.tokenizer import Tokenizer
from shards.manifest import Manifest, verify

if TYPE_CHECKING:  # a name alone is asked for where no runtime is
    from shards.runtimes.load import Fetch

TOKENIZER = "tokenizer.json"
CHAT = "chat.json"


@dataclass(frozen=True, slots=True)
class ChatFile:
    """The artifact `chat.json`: the template, the special tokens that it names, and the sampling
    that the model's owner recommends ("temperature", "top_p", "top_k", "repetition_penalty")."""

    template: str | None = None
    special: Mapping[str, str] = field(default_factory=dict)
    sampling: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Equal files give equal bytes."""
        doc = {
            "template": self.template,
            "special": dict(self.special),
            "sampling": dict(self.sampling),
        }
        return json.dumps(doc, indent=1, sort_keys=True, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes) -> ChatFile:
        """Raises ModelError for anything that `to_json` did not write."""
        try:
            raw: Any = json.loads(data)
            template, special, sampling = raw["template"], raw["special"], raw["sampling"]
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise ModelError(f"{CHAT} cannot be read: {error}") from error
        if (
            not isinstance(template, (str, type(None)))
            or not isinstance(special, dict)
            or not all(isinstance(text, str) for text in special.values())
            or not isinstance(sampling, dict)
            or not all(isinstance(value, (int, float)) for value in sampling.values())
        ):
            raise ModelError(f"{CHAT} has fields of other types")
        return cls(template, special, sampling)


@dataclass(frozen=True, slots=True)
class Texts:
    """A version's texts, ready to use. `template` is None for a model that only goes on."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    chat: ChatFile

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> Texts:
        """From the bytes of the artifacts, a tokenizer among them. Raises ModelError."""
        chat = ChatFile.from_json(files[CHAT]) if CHAT in files else ChatFile()
        template = ChatTemplate(chat.template, chat.special) if chat.template else None
        return cls(Tokenizer(files[TOKENIZER]), template, chat)

    @classmethod
    def load(cls, manifest: Manifest, fetch: Fetch) -> Texts | None:
        """Of a version, verified; None where it takes and gives ids alone. Raises ArtifactError,
        ModelError: where libraries lack, it names them."""
        read: dict[str, bytes] = {}
        for text in manifest.part_files():
            read[text.file] = verify(fetch(text.file), text.sha256, text.file)
        return cls.of(read) if TOKENIZER in read else None
