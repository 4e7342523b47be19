"""Lines to paste that have a language model go on with a text."""

from __future__ import annotations

import json
import shlex

from nodes.gateway.page.lines import Lines

COMPLETE_PYTHON = """\
python3 - <<'END'
import json, urllib.request
request = urllib.request.Request({url}, json.dumps({body}).encode(), {headers})
print(json.load(urllib.request.urlopen(request))["choices"][0]["text"])
END"""
COMPLETE_JAVASCRIPT = """\
fetch({url}, {{method: "POST", headers: {headers}, body: JSON.stringify({body})}})
  .then(answer => answer.json()).then(console.log)"""


def completion_lines(model: str, url: str, key: str = "") -> Lines:
    """See `nodes.gateway.page.lines.lines_for`."""
    where = f"{url}/v1/completions"
    body = json.dumps({"model": model, "prompt": "Once", "max_tokens": 32})
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    shown = "".join(f" -H {shlex.quote(f'{name}: {each}')}" for name, each in headers.items())
    return Lines(
        f"curl -sS{shown} -d {shlex.quote(body)} {where}",
        COMPLETE_PYTHON.format(url=json.dumps(where), body=body, headers=json.dumps(headers)),
        COMPLETE_JAVASCRIPT.format(url=json.dumps(where), body=body, headers=json.dumps(headers)),
    )
