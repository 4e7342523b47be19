"""What clients write, as the token ids that stage 1 takes: by the texts of the model's version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shards.errors import ModelError
from shards.language.texts import Texts
from swarm.errors import InvalidArgument
from swarm.language.request import GenerateRequest, Sampling


def needs_texts(request: GenerateRequest) -> bool:
    """Whether there is a text to be made token ids of, or one to be looked for in the answer, or a
    schema of its text."""
    return request.text is not None or bool(request.messages or request.stops or request.schema)


def characters(request: GenerateRequest) -> int:
    """About as many as there are to be read."""
    if request.text is not None:
        return len(request.text)
    return sum(len(str(message)) for message in (*request.messages, *request.tools))


def with_ids(request: GenerateRequest, texts: Texts | None, title: str) -> GenerateRequest:
    """The request with token ids for its text or its chat. title: of the version. Raises
    `InvalidArgument`."""
    if not needs_texts(request):
        return request
    if texts is None:
        raise InvalidArgument(
            f"{title} has no tokenizer: give the prompt as token ids, stop by stop_ids, and give "
            "no schema"
        )
    try:
        if request.messages:
            ids = _chat(request, texts, title)
        elif request.text is not None:
            ids = texts.tokenizer.encode(_whole_characters(request.text))
        else:
            return request
    except ModelError as error:
        raise InvalidArgument(f"{title}: {error}") from None
    return replace(request, prompt=tuple(ids), text=None, messages=(), tools=())


def with_sampling(request: GenerateRequest, texts: Texts | None) -> GenerateRequest:
    """The request with what the model's owner recommends, where the request leaves that to it.
    Raises `InvalidArgument`."""
    if not request.recommended:
        return request
    known: Mapping[str, float] = {} if texts is None else texts.chat.sampling
    fields = {name: known[name] for name in request.recommended if name in known}
    if "top_k" in fields:
        fields["top_k"] = int(fields["top_k"])
    sampling = Sampling.read({**request.sampling.as_doc(), **fields})
    return replace(request, sampling=sampling, recommended=())


def _chat(request: GenerateRequest, texts: Texts, title: str) -> list[int]:
    if texts.template is None:
        raise InvalidArgument(f"{title} has no chat template: it goes on with a text")
    prompt = texts.template.render(request.messages, tools=request.tools or None)
    return texts.tokenizer.encode(_whole_characters(prompt), special=False)


def _whole_characters(text: str) -> str:
    """The text. Raises `InvalidArgument` for halves of characters, which JSON can write, and
    UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"the text has half a character at {error.start}: no UTF-8 writes it"
        ) from None
    return text
