"""How people ask a language model that `swarm up` serves: lines to paste."""

from __future__ import annotations

import shlex

from nodes.feature import Asking
from shards.language.texts import TOKENIZER
from shards.manifest import Manifest
from swarm.language.subjects import LanguageSubjects

GENERATE = """\
{python} - <<'END'
import asyncio, swarm
async def main():
    async with swarm.connect({url}, {mesh}) as mesh:
        async for token in mesh.generate({model}, [1, 2, 3], max_tokens=32):
            print(token.token, end=" ", flush=True)
asyncio.run(main())
END"""


def asking(manifest: Manifest, mesh: str) -> Asking:
    """Of a version in a mesh."""
    has_texts = any(text.file == TOKENIZER for text in manifest.part_files())
    prompt = '"Once upon a time"' if has_texts else "--ids 1,2,3"
    subject, ask = LanguageSubjects(mesh).generate(manifest.model), '{"prompt": [1, 2, 3]}'
    nats = f"req {subject} {shlex.quote(ask)} --replies 0 --timeout 5s"
    return Asking(f"generate {manifest.model} {prompt}", GENERATE, nats)
