"""Lines to paste that ask a model over HTTP, with its real inputs.

Each works as it stands, without a file and without a library: the values are zeros. A request that
is too long for a command's argument is written by a program.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodes.gateway.added import added
from swarm.model import ModelInfo, Spec

WRITTEN_OUT = 256  # values of a request up to which a line has them all
ZEROS = {"BOOL": False, "BYTES": ""}
PYTHON = """\
python3 - <<'END'
import json, urllib.request
body = {body}
request = urllib.request.Request({url}, json.dumps(body).encode(), {headers})
print(json.load(urllib.request.urlopen(request)){part})
END"""
JAVASCRIPT = """\
fetch({url}, {{method: "POST", headers: {headers}, body: JSON.stringify({body})}})
  .then(answer => answer.json()).then(console.log)"""


@dataclass(frozen=True, slots=True)
class Lines:
    """For a shell, for a shell with Python, for a browser's console or Node.js."""

    curl: str
    python: str
    javascript: str


def lines_to(
    url: str, key: str, curl: str, python: str, script: str, before: str = "", part: str = ""
) -> Lines:
    """Lines that send a body. url: whole. key: what the caller shows, "" where nothing has to be
    shown. curl: its options, with the body. python, script: the body in these languages. before: a
    program that writes to curl. part: of the answer, that Python shows."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    shown = "".join(f" -H {shlex.quote(f'{name}: {each}')}" for name, each in headers.items())
    given = {"url": json.dumps(url), "headers": json.dumps(headers)}
    return Lines(
        f"{before}curl -sS{shown} {curl} {url}",
        PYTHON.format(body=python, part=part, **given),
        JAVASCRIPT.format(body=script, **given),
    )


def lines_for(info: ModelInfo, examples: Mapping[str, Any], url: str, key: str = "") -> Lines:
    """examples: shapes by input, as the model was split with. url: of the gateway. key: see
    `lines_to`."""
    for each in added():
        if (lines := each.lines(info, url, key)) is not None:
            return lines
    shapes = {spec.name: shape_of(spec, examples.get(spec.name)) for spec in info.inputs}
    python = _body(info.inputs, shapes, "[{value}] * {count}", repr)
    if sum(map(math.prod, shapes.values())) <= WRITTEN_OUT:
        tensors = [_tensor(spec, shapes[spec.name]) for spec in info.inputs]
        before, curl = "", f"-d {shlex.quote(json.dumps({'inputs': tensors}))}"
    else:
        program = f"import json; print(json.dumps({python}))"
        before, curl = f"python3 -c {shlex.quote(program)} | ", "-d @-"
    script = _body(info.inputs, shapes, "Array({count}).fill({value})", json.dumps)
    return lines_to(f"{url}/v2/models/{info.model}/infer", key, curl, python, script, before)


def shape_of(spec: Spec, example: Any) -> tuple[int, ...]:
    """A shape that the model takes: free dimensions as in the example, else 1."""
    if isinstance(example, list) and (spec.any_rank or len(example) == len(spec.shape)):
        return tuple(int(size) for size in example)
    return tuple(max(1, size) for size in spec.shape)


def _tensor(spec: Spec, shape: tuple[int, ...]) -> dict[str, Any]:
    data = [ZEROS.get(spec.datatype, 0)] * math.prod(shape)
    return {"name": spec.name, "shape": shape, "datatype": spec.datatype, "data": data}


def _body(
    inputs: Sequence[Spec],
    shapes: Mapping[str, tuple[int, ...]],
    many: str,
    written: Callable[[Any], str],
) -> str:
    """A request in Python's or JavaScript's words. many: a list of so many equal values."""
    tensors = []
    for spec in inputs:
        value = written(ZEROS.get(spec.datatype, 0))
        data = many.format(value=value, count=math.prod(shapes[spec.name]))
        tensors.append(
            f'{{"name": {json.dumps(spec.name)}, "shape": {list(shapes[spec.name])}, '
            f'"datatype": "{spec.datatype}", "data": {data}}}'
        )
    return f'{{"inputs": [{", ".join(tensors)}]}}'
