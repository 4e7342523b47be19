"""The OpenAPI document of the HTTP door: paths, bodies, and the codes that they answer with."""

from __future__ import annotations

from functools import cache
from typing import Any

import swarm
from nodes.gateway.added import Described, added
from swarm.wire.tensors import DTYPES

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
# Codes that any path with callers may answer with, and what is to be done.
REFUSALS = {
    "400": "The request is wrong: the text says in which part.",
    "401": "No key, token or certificate was shown that the gateway knows.",
    "403": "This caller, or a page of this origin, may not ask.",
    "404": "There is no such model, version or path.",
    "405": "The path takes another method.",
    "408": "The body came too slowly.",
    "413": "The body is larger than this gateway takes.",
    "415": "The body's Content-Encoding is none of gzip, deflate and identity.",
    "429": "Too many requests, or the caller's quota: ask again after Retry-After seconds. "
    "A gateway may be told to say 503 instead.",
    "500": "A fault of the gateway or of a node.",
    "501": "A part of the protocol that this gateway does not offer.",
    "503": "No server, or no node that serves a stage: ask again.",
    "504": "The budget of the request is over.",
}


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties, "required": list(required)}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


PARAMETERS: Schema = {
    "type": "object",
    "maxProperties": 64,
    "additionalProperties": {"type": ["boolean", "integer", "number", "string"]},
}
SHAPE = _list(WHOLE)
DATATYPE: Schema = {"type": "string", "enum": list(DTYPES)}
DATA: Schema = {
    "type": "array",
    "description": "Values, flat or nested, in row-major order. NaN and infinity become null.",
}
TENSOR = {"name": TEXT, "datatype": DATATYPE, "shape": SHAPE}
OPTIONAL = {"parameters": PARAMETERS, "data": DATA}
CLASS = {"label": TEXT, "class": WHOLE}
TIMES = _object({"count": WHOLE, "ns": WHOLE})

SCHEMAS: dict[str, Schema] = {
    "Error": _object({"error": TEXT}),
    "Server": _object({"name": TEXT, "version": TEXT, "extensions": _list(TEXT)}),
    "Live": _object({"live": {"type": "boolean"}}),
    "Ready": _object({"ready": {"type": "boolean"}}, {"name": TEXT}),
    "TensorOf": _object({"name": TEXT, "datatype": DATATYPE, "shape": SHAPE}),
    "Model": _object(
        {
            "name": TEXT,
            "versions": _list(TEXT),
            "platform": TEXT,
            "inputs": _list(_ref("TensorOf")),
            "outputs": _list(_ref("TensorOf")),
        }
    ),
    "Config": _object(
        {
            "name": TEXT,
            "platform": TEXT,
            "backend": TEXT,
            "max_batch_size": WHOLE,
            "input": _list(_object({"name": TEXT, "data_type": TEXT, "dims": SHAPE})),
            "output": _list(_object({"name": TEXT, "data_type": TEXT, "dims": SHAPE})),
        }
    ),
    "Statistics": _object(
        {
            "model_stats": _list(
                _object(
                    {
                        "name": TEXT,
                        "version": TEXT,
                        "last_inference": WHOLE,
                        "inference_count": WHOLE,
                        "execution_count": WHOLE,
                        "inference_stats": {"type": "object", "additionalProperties": TIMES},
                        "batch_stats": _list({}),
                    }
                )
            )
        }
    ),
    "Index": _list(
        _object(
            {
                "name": TEXT,
                "version": TEXT,
                "state": {"type": "string", "enum": ["READY", "UNAVAILABLE"]},
                "reason": TEXT,
            }
        )
    ),
    "Regions": _list(_object({"name": TEXT, "key": TEXT, "offset": WHOLE, "byte_size": WHOLE})),
    "Infer": _object(
        {"inputs": _list(_object(TENSOR, OPTIONAL))},
        {
            "id": TEXT,
            "parameters": {
                **PARAMETERS,
                "description": "timeout: microseconds. priority: low, normal or high. "
                "allow_degraded: whether a lighter model may answer. "
                "binary_data_output: outputs follow the JSON.",
            },
            "outputs": _list(_object({"name": TEXT}, {"parameters": PARAMETERS})),
        },
    ),
    "Inferred": _object(
        {
            "model_name": TEXT,
            "model_version": TEXT,
            "id": TEXT,
            "parameters": _object(
                {
                    "degraded": {"type": "boolean"},
                    "weights": WHOLE,
                    "latency_us": WHOLE,
                    "hops": {"type": "string", "description": "JSON: where each stage ran."},
                },
                {
                    "message": TEXT,
                    "unfamiliar": {
                        "type": "boolean",
                        "description": "Of a model with a guard: unlike its calibration data.",
                    },
                    "unfamiliarity": {"type": "number"},
                    "unfamiliar_rows": TEXT,
                },
            ),
            "outputs": _list(_object(TENSOR, OPTIONAL)),
        }
    ),
    "Seen": {
        "description": "By the task of the model: boxes are left, top, right, bottom, as shares "
        "of the picture.",
        "anyOf": [
            _object(
                {
                    "detections": _list(
                        _object(
                            {
                                **CLASS,
                                "score": {"type": "number"},
                                "box": {**_list({"type": "number"}), "minItems": 4, "maxItems": 4},
                            }
                        )
                    )
                }
            ),
            _object({"classes": _list(_object({**CLASS, "score": {"type": "number"}}))}),
            _object({"segments": _list(_object({**CLASS, "share": SHARE})), "shape": SHAPE}),
            _object({"embedding": _list({"type": "number"})}),
        ],
    },
    "Page": _object(
        {
            "models": _list(
                _object(
                    {
                        "name": TEXT,
                        "version": TEXT,
                        "ready": {"type": "boolean"},
                        "reason": TEXT,
                        "inputs": _list(_ref("TensorOf")),
                        "outputs": _list(_ref("TensorOf")),
                    },
                    {
                        "task": {"type": ["string", "null"]},
                        "lines": _object({"curl": TEXT, "python": TEXT, "javascript": TEXT}),
                    },
                )
            )
        }
    ),
    "Nothing": {"description": "An empty body."},
    "Region": _object({"key": TEXT, "byte_size": WHOLE}, {"offset": WHOLE}),
    "Wish": _object({}, {"ready": {"type": "boolean"}}),
}

MODEL, VERSION = "/v2/models/{model}", "/v2/models/{model}/versions/{version}"
SHM = "/v2/systemsharedmemory"
# path -> (method, what it does, schema of the body or "", schema of the answer)
PATHS: dict[str, tuple[str, str, str, str]] = {
    "/v2": ("get", "The server's name, version and extensions.", "", "Server"),
    "/v2/health/live": ("get", "Whether the process answers.", "", "Live"),
    "/v2/health/ready": ("get", "Whether it takes requests; 503 where not.", "", "Ready"),
    "/v2/models/stats": ("get", "Statistics of all models.", "", "Statistics"),
    "/v2/repository/index": ("post", "Models and versions.", "Wish", "Index"),
    "/page/models": ("get", "Models with lines that ask them.", "", "Page"),
    "/page/see/{model}": ("post", "What a model with a task says of a picture.", "PIXELS", "Seen"),
    f"{SHM}/status": ("get", "Registered regions.", "", "Regions"),
    f"{SHM}/unregister": ("post", "Forget all regions.", "", "Nothing"),
    f"{SHM}/region/{{region}}/status": ("get", "One region.", "", "Regions"),
    f"{SHM}/region/{{region}}/register": ("post", "Register a region.", "Region", "Nothing"),
    f"{SHM}/region/{{region}}/unregister": ("post", "Forget a region.", "", "Nothing"),
    "/v2/cudasharedmemory/status": ("get", "Always empty.", "", "Regions"),
    "/v2/cudasharedmemory/unregister": ("post", "Does nothing.", "", "Nothing"),
    "/v2/cudasharedmemory/region/{region}/status": ("get", "Always empty.", "", "Regions"),
    "/v2/cudasharedmemory/region/{region}/unregister": ("post", "Does nothing.", "", "Nothing"),
    **{
        base + rest: described
        for base in (MODEL, VERSION)
        for rest, described in {
            "": ("get", "Inputs and outputs; -1 is any size.", "", "Model"),
            "/ready": ("get", "Whether nodes serve all stages; 404 where not.", "", "Ready"),
            "/config": ("get", "Triton's configuration, for tools.", "", "Config"),
            "/stats": ("get", "Statistics of this gateway's requests.", "", "Statistics"),
            "/infer": ("post", "An inference.", "Infer", "Inferred"),
        }.items()
    },
}


@cache
def document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    parts = [Described(PATHS, SCHEMAS), *(each.described() for each in added())]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "swarm gateway",
            "version": swarm.__version__,
            "description": "The Open Inference Protocol v2 with Triton's extensions, the page's "
            "own paths, and what the gateway's other features answer.",
        },
        "paths": {
            path: {row[0]: _operation(part, path, *row)}
            for part in parts
            for path, row in part.paths.items()
        },
        "components": {
            "schemas": {name: each for part in parts for name, each in part.schemas.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _operation(
    of: Described, path: str, method: str, summary: str, body: str, answer: str
) -> dict[str, Any]:
    responses = {
        code: {"description": text, "content": _json(of.error)} for code, text in REFUSALS.items()
    }
    if path.startswith("/v2/health"):
        responses = {"503": {"description": "Not ready.", "content": _json("Ready")}}
    elif path.endswith("/ready"):
        either = {"anyOf": [_ref("Error"), _ref("Ready")]}
        content = {"application/json": {"schema": either}}
        responses["404"] = {"description": REFUSALS["404"], "content": content}
    content = _json(answer)
    if answer == "Inferred":
        content |= _binary("JSON of Inference-Header-Content-Length bytes, tensors behind it.")
    elif answer in of.streams:
        content["text/event-stream"] = {"schema": TEXT}
    said: dict[str, Any] = {"200": {"description": "The answer."}}
    if answer != "Nothing":
        said["200"]["content"] = content
    made: dict[str, Any] = {
        "summary": summary,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": TEXT}
            for name in ("model", "version", "region")
            if f"{{{name}}}" in path
        ],
        "responses": said | responses,
    }
    if body == "PIXELS":
        side = {"type": "integer", "minimum": 1, "maximum": 4096}
        made["parameters"] += [
            {"name": name, "in": "query", "required": True, "schema": side}
            for name in ("width", "height")
        ]
        text = "RGB pixels, 3 bytes each, by rows: 3 * width * height bytes, 8 MiB at most."
        made["requestBody"] = {"required": True, "content": _binary(text)}
    elif body:
        made["requestBody"] = {"required": body != "Wish", "content": _json(body)}
        if body == "Infer":
            text = "JSON of Inference-Header-Content-Length bytes, tensors behind it."
            made["requestBody"]["content"] |= _binary(text)
    return made


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": _ref(name)}}


def _binary(text: str) -> dict[str, Any]:
    return {"application/octet-stream": {"schema": {"type": "string", "description": text}}}
