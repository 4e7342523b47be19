"""The paths of OpenAI's protocol, as the gateway's OpenAPI document has them."""

from __future__ import annotations

from typing import Any

from nodes.gateway.added import Described

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
