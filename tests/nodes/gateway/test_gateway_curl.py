"""The line of curl that the page shows answers as it is pasted, and is the caller's one request."""

from __future__ import annotations

import json

from http_rig import door
from programs import needed
from support.foreign_library import printed


async def test_the_pages_line_of_curl_answers_as_it_is_pasted() -> None:
    needed("curl", "curl")
    async with door(page=True) as opened:
        host = f"127.0.0.1:{opened.server.port}"
        listed = await opened.ask("/page/models", Host=host)
        [model] = [each for each in listed.document["models"] if each["ready"]]
        line = model["lines"]["curl"]
        assert line.startswith("curl ")
        assert opened.callers.taken == 0  # a view is no request of a quota
        answer = json.loads(await printed("bash", "-c", line))
        assert opened.callers.taken == 1
    assert answer["model_name"] == model["name"] == "m"
    assert [output["name"] for output in answer["outputs"]] == ["double", "negative"]
