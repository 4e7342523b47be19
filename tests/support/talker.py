"""A small random language model with a tokenizer of bytes and a chat template, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from zoo.language.decoder_graph import DecoderShape, decoder

from shards.language.decoder import LanguageHints
from shards.language.texts import CHAT, TOKENIZER, ChatFile, Texts
from shards.runtimes.ort import make_session
from shards.split.split import SplitResult, split

TALKER, CONTEXT = "talker", 512
LARGE, STRANGER, SILENT = "speaker", "stranger", "silent"  # of `tests/nodes/language`
TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    "{% for message in messages %}"
    "{% if message.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
SHAPE = DecoderShape(layers=4, vocabulary=256, context=CONTEXT)
HELLO = [{"role": "user", "content": "Hello."}]


@cache
def talker(stages: int = 2, name: str = TALKER, seed: int = 0, order: int = 1) -> SplitResult:
    """order: -1 for a tokenizer of other ids."""
    chat = ChatFile(TEMPLATE)
    hints = LanguageHints(
        context=CONTEXT, files={TOKENIZER: _bytes_as_tokens(order), CHAT: chat.to_json()}
    )
    model = whole(seed)
    return split(model, name=name, stages=stages, profile=False, hints=hints)


@cache
def whole(seed: int) -> bytes:
    """The model before it is split."""
    return decoder(SHAPE, seed=seed)


def probabilities(seed: int, ids: Sequence[int]) -> np.ndarray:
    """Of the token behind each of `ids`, [ids, vocabulary]: by ONNX Runtime alone, in one run of
    the whole model."""
    session = make_session(whole(seed))
    empty = np.zeros((1, SHAPE.kv_heads, 0, SHAPE.head_dim), np.float32)
    feeds = {each.name: empty for each in session.get_inputs() if each.name.startswith("past")}
    feeds |= {"input_ids": np.array([ids], np.int64)}
    feeds |= {"attention_mask": np.ones((1, len(ids)), np.int64)}
    logits = session.run(["logits"], feeds)[0][0].astype(np.float64)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


@cache
def texts() -> Texts:
    result = talker()
    return Texts.of({name: result.files[name] for name in (TOKENIZER, CHAT)})


def ids_of(messages: list[dict[str, str]], tools: list[dict[str, Any]] | None = None) -> list[int]:
    """The prompt of a chat as token ids."""
    template = texts().template
    assert template is not None
    return texts().tokenizer.encode(template.render(messages, tools=tools), special=False)


def _bytes_as_tokens(order: int) -> bytes:
    """One token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[::order]
    maker = Tokenizer(models.BPE(vocab={char: at for at, char in enumerate(alphabet)}, merges=[]))
    maker.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    maker.decoder = decoders.ByteLevel()
    return maker.to_str().encode()
