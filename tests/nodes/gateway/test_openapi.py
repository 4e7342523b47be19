"""The OpenAPI document says what the HTTP door answers."""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from http_rig import door, tensor

from nodes.gateway.added import added
from nodes.gateway.http.app import App
from nodes.gateway.page.app import PageApp
from nodes.gateway.page.openapi import document

BASES = {App: "/v2", PageApp: ""}
OF_OTHERS = {path for each in added() for path in each.described().paths}
BEHIND_A_MODEL = ("", "/ready", "/config", "/stats", "/infer")
HEALTH = {"/v2/health/live", "/v2/health/ready"}


def routes(app: type) -> set[str]:
    """The paths that a door's code has cases for, with every name in them as {}."""
    found = set()
    source = Path(inspect.getfile(app)).read_text()
    for case in ast.walk(ast.parse(source)):
        if isinstance(case, ast.match_case):
            options = case.pattern
            options = options.pattern if isinstance(options, ast.MatchAs) else options
            for each in options.patterns if isinstance(options, ast.MatchOr) else [options]:
                if isinstance(each, ast.MatchSequence):
                    found |= paths_of(each, BASES[app])
    return found


def paths_of(pattern: ast.MatchSequence, base: str) -> set[str]:
    """Of a pattern: behind a star is all that a model or a region has."""
    found = [base]
    for part in pattern.patterns:
        match part:
            case ast.MatchValue(ast.Constant(word)):
                found = [f"{path}/{word}" for path in found]
            case ast.MatchAs(name=name):
                acts = ("status", "register", "unregister") if name == "act" else ("{}",)
                found = [f"{path}/{act}" for path in found for act in acts]
            case ast.MatchStar(name=None):
                found = [path + rest for path in found for rest in ("", "/region/{}")]
            case ast.MatchStar():
                found = [path + rest for path in found for rest in BEHIND_A_MODEL]
    return set(found)


def documented() -> set[str]:
    return {re.sub(r"{\w+}", "{}", path) for path in document()["paths"] if path not in OF_OTHERS}


def test_the_document_is_one_of_openapi_3_1_and_its_schemas_are_schemas() -> None:
    assert document()["openapi"].startswith("3.1.")
    for schema in document()["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    text = json.dumps(document())
    for name in re.findall(r"#/components/schemas/(\w+)", text):
        assert name in document()["components"]["schemas"]


def test_each_route_of_the_door_is_in_the_document_and_nothing_else() -> None:
    known = set().union(*(routes(app) for app in BASES)) | HEALTH
    # A region that is registered has a name; the document itself needs no entry.
    known -= {"/v2/systemsharedmemory/register", "/openapi.json"}
    assert documented() == known


def fits(schema: Any, value: Any) -> None:
    whole = {**schema, "components": document()["components"]}
    jsonschema.Draft202012Validator(whole).validate(value)


PLACES = {"model": "m", "version": "3", "region": "r"}
BODIES: dict[str, Any] = {
    "Infer": {"inputs": [tensor()], "outputs": [{"name": "double"}], "parameters": {"timeout": 9}},
    "Wish": {"ready": True},
    "Region": {"key": "/r", "byte_size": 16},
}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "path", [path for path in document()["paths"] if path.startswith(("/v2", "/page"))]
)
@pytest.mark.parametrize("model", ["m", "absent"])
async def test_real_answers_fit_the_document_and_requests_alone_take_from_a_quota(
    path: str, model: str
) -> None:
    [(method, operation)] = document()["paths"][path].items()
    where = path.format(**PLACES | {"model": model})
    body = None
    if method == "post":
        content = operation.get("requestBody", {}).get("content", {})
        name = content.get("application/json", {}).get("schema", {}).get("$ref", "").split("/")[-1]
        body = json.dumps(BODIES.get(name, {})).encode()
        if name in BODIES:
            fits(content["application/json"]["schema"], BODIES[name])
    async with door(page=True) as opened:
        reply = await opened.ask(where, body, method.upper())
        assert opened.callers.taken == path.endswith(("/infer", "/page/see/{model}"))
    said = operation["responses"][str(reply.code)]
    if "content" in said:
        fits(said["content"]["application/json"]["schema"], reply.document)
    else:
        assert reply.body == b""
    is_known = model == "m" or "{model}" not in path
    if is_known and "systemsharedmemory" not in path and "see" not in path:
        assert reply.code == 200
    elif not is_known and not path.endswith("stats"):
        assert reply.code in (400, 404)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "query",
    ["", "width=0&height=1", "width=1&height=4097", "width=4096&height=4096", "width=-1", "&" * 99],
)
async def test_a_picture_of_no_size_or_too_large_a_size_is_refused_by_name(query: str) -> None:
    async with door(page=True) as opened:
        reply = await opened.ask(f"/page/see/m?{query}", b"")
        assert reply.code == 400
        assert "picture" in reply.error or "pixels" in reply.error
