"""The paths of OpenAI's protocol, for the gateway's OpenAPI document and for its page."""

from __future__ import annotations

import json
import shlex
from typing import Any

from nodes.gateway.added import Described
from nodes.gateway.page.lines import Lines, lines_to

TEXT = {"type": "string"}
OBJECTS = {"type": "array", "items": {"type": "object"}}


def _object(**required: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": required, "required": list(required)}


MODELS = {"type": "array", "items": {"$ref": "#/components/schemas/OpenAiModel"}}
DESCRIBED = Described(
    paths={
        "/v1/models": ("get", "Language models.", "", "OpenAiModels"),
        "/v1/models/{model}": ("get", "One language model.", "", "OpenAiModel"),
        "/v1/completions": ("post", "Go on with a text.", "Complete", "Completion"),
        "/v1/chat/completions": ("post", "Answer a conversation.", "Chat", "Completion"),
    },
    schemas={
        "OpenAiError": _object(error=_object(message=TEXT)),
        "OpenAiModel": _object(id=TEXT, object=TEXT),
        "OpenAiModels": _object(object=TEXT, data=MODELS),
        "Completion": _object(id=TEXT, object=TEXT, choices=OBJECTS),
        "Complete": _object(model=TEXT, prompt={}),
        "Chat": _object(model=TEXT, messages=OBJECTS),
    },
    error="OpenAiError",
    streams=frozenset({"Completion"}),
)


def completion_lines(model: str, url: str, key: str) -> Lines:
    """See `nodes.gateway.page.lines.lines_for`. The line of curl shows each token as it comes."""
    body: dict[str, Any] = {"model": model, "prompt": "Once", "max_tokens": 32}
    curl = f"-N -d {shlex.quote(json.dumps(body | {'stream': True}))}"
    written, part = json.dumps(body), '["choices"][0]["text"]'
    return lines_to(f"{url}/v1/completions", key, curl, written, written, part=part)
