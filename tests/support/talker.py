"""A small random language model with a tokenizer of bytes and a chat template, for tests."""

from __future__ import annotations

from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from shards.decoder.texts import CHAT, TOKENIZER, ChatFile, Texts
from shards.decoder_fields import LanguageHints
from shards.split.split import SplitResult, split
from shards.zoo.decoder_graph import DecoderShape, decoder

TALKER, CONTEXT = "talker", 512
TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    "{% for message in messages %}"
    "{% if message.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
HELLO = [{"role": "user", "content": "Hello."}]


@cache
def talker(stages: int = 2, name: str = TALKER, seed: int = 0) -> SplitResult:
    chat = ChatFile(TEMPLATE)
    hints = LanguageHints(
        context=CONTEXT, files={TOKENIZER: _bytes_as_tokens(), CHAT: chat.to_json()}
    )
    model = decoder(DecoderShape(layers=4, vocabulary=256, context=CONTEXT), seed=seed)
    return split(model, name=name, stages=stages, profile=False, language=hints)


@cache
def texts() -> Texts:
    result = talker()
    return Texts.of({name: result.files[name] for name in (TOKENIZER, CHAT)})


def ids_of(messages: list[dict[str, str]], tools: list[dict[str, Any]] | None = None) -> list[int]:
    """The prompt of a chat as token ids."""
    template = texts().template
    assert template is not None
    return texts().tokenizer.encode(template.render(messages, tools=tools), special=False)


def _bytes_as_tokens() -> bytes:
    """One token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    maker = Tokenizer(models.BPE(vocab={char: at for at, char in enumerate(alphabet)}, merges=[]))
    maker.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    maker.decoder = decoders.ByteLevel()
    return maker.to_str().encode()
