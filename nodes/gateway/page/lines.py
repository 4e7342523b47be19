"""Lines to paste that ask a model over HTTP, with its real inputs.

Each works as it stands, without a file and without a library: the values are zeros. A request that
is too long for a command's argument is written by a program.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swarm.model import Spec

WRITTEN_OUT = 256  # values of a request up to which a line has them all
ZEROS = {"BOOL": False, "BYTES": ""}
SHELL_WRITES = 'import json; print(json.dumps({{"inputs": [{tensors}]}}))'
PYTHON = """\
python3 - <<'END'
import json, urllib.request
body = {{"inputs": [{tensors}]}}
request = urllib.request.Request({url}, json.dumps(body).encode(), {headers})
print(json.load(urllib.request.urlopen(request)))
END"""
JAVASCRIPT = """\
fetch({url}, {{method: "POST", headers: {headers}, body: JSON.stringify({{inputs: [{tensors}]}})}})
  .then(answer => answer.json()).then(console.log)"""


@dataclass(frozen=True, slots=True)
class Lines:
    """For a shell, for a shell with Python, for a browser's console or Node.js."""

    curl: str
    python: str
    javascript: str


def lines_for(
    model: str, inputs: Sequence[Spec], examples: Mapping[str, Any], url: str, key: str = ""
) -> Lines:
    """examples: shapes by input, as the model was split with. url: of the gateway. key: what the
    caller shows, "" where nothing has to be shown."""
    shapes = {spec.name: shape_of(spec, examples.get(spec.name)) for spec in inputs}
    where = f"{url}/v2/models/{model}/infer"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    shown = "".join(f" -H {shlex.quote(f'{name}: {each}')}" for name, each in headers.items())
    if sum(map(math.prod, shapes.values())) <= WRITTEN_OUT:
        body = {"inputs": [_tensor(spec, shapes[spec.name]) for spec in inputs]}
        curl = f"curl -sS{shown} -d {shlex.quote(json.dumps(body))} {where}"
    else:
        program = SHELL_WRITES.format(tensors=_tensors(inputs, shapes, "[{value}] * {count}"))
        curl = f"python3 -c {shlex.quote(program)} | curl -sS{shown} -d @- {where}"
    return Lines(
        curl,
        PYTHON.format(
            tensors=_tensors(inputs, shapes, "[{value}] * {count}"),
            url=json.dumps(where),
            headers=json.dumps(headers),
        ),
        JAVASCRIPT.format(
            tensors=_tensors(inputs, shapes, "Array({count}).fill({value})", script=True),
            url=json.dumps(where),
            headers=json.dumps(headers),
        ),
    )


def shape_of(spec: Spec, example: Any) -> tuple[int, ...]:
    """A shape that the model takes: free dimensions as in the example, else 1."""
    if isinstance(example, list) and (spec.any_rank or len(example) == len(spec.shape)):
        return tuple(int(size) for size in example)
    return tuple(max(1, size) for size in spec.shape)


def _tensor(spec: Spec, shape: tuple[int, ...]) -> dict[str, Any]:
    data = [ZEROS.get(spec.datatype, 0)] * math.prod(shape)
    return {"name": spec.name, "shape": shape, "datatype": spec.datatype, "data": data}


def _tensors(
    inputs: Sequence[Spec], shapes: Mapping[str, tuple[int, ...]], many: str, script: bool = False
) -> str:
    """The tensors in Python's or JavaScript's words; many: a list of so many equal values."""
    written = []
    for spec in inputs:
        zero = ZEROS.get(spec.datatype, 0)
        value = json.dumps(zero) if script else repr(zero)
        data = many.format(value=value, count=math.prod(shapes[spec.name]))
        written.append(
            f'{{"name": {json.dumps(spec.name)}, "shape": {list(shapes[spec.name])}, '
            f'"datatype": "{spec.datatype}", "data": {data}}}'
        )
    return ", ".join(written)
