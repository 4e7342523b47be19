"""A rival of the split: a core that gets pictures as JPEG, runs all layers, and answers with
boxes."""

from __future__ import annotations

import asyncio
import json

import swarm
from bench.fleets.detector import as_input, found_in, of_jpeg
from bench.helpers import arguments, input_ended, tell
from shards.manifest import read_dir
from shards.runtimes.load import load_stage
from swarm.link import LinkMessage

SUBJECT = "bench-links.jpeg"


async def main(url: str, folder: str) -> None:
    manifest, fetch = read_dir(folder)
    whole = load_stage(manifest, 1, fetch)
    (spec,) = manifest.inputs
    async with swarm.connect(url, shm=False) as mesh:

        def answer(message: LinkMessage) -> None:
            outputs = whole.run(as_input(of_jpeg(bytes(message.data)), spec.name))
            mesh.link.publish(message.reply, json.dumps(found_in(outputs)).encode())

        mesh.link.subscribe(SUBJECT, answer)
        await mesh.link.flush()
        tell("up")
        await input_ended()


if __name__ == "__main__":
    asyncio.run(main(*arguments()))
