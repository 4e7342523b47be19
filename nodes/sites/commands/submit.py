"""`swarm submit` and `swarm results`: requests that a site stores, and their answers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

import swarm
from nodes.cli.arrays import read_inputs
from nodes.cli.command import option, seldom
from nodes.cli.options import AGENT, DOMAIN, Input, Model, Target
from nodes.cli.with_mesh import client_of
from nodes.console import conclude, err, out, print_json
from swarm.errors import Status
from swarm.wire import oip

Site = Annotated[
    str, DOMAIN, typer.Option(help="JetStream domain of the site; that of the server when empty.")
]
Agent = Annotated[
    str, AGENT, typer.Option(help="Whose requests they are; letters, digits, '_', '-'.")
]


async def submit(
    model: Model,
    input: Input,
    agent: Agent,
    target: Target,
    site: Site = "",
    repeat: int = option(1, "How often to submit it.", min=1),
) -> None:
    """Store a request that can wait at this site, also while the link to the hub is cut."""
    async with client_of(target) as client:
        inputs = read_inputs(input)
        tickets = [
            await client.submit(model, inputs, agent=agent, site=site) for _ in range(repeat)
        ]
        first, last = tickets[0], tickets[-1]
        numbers = f"{first.number}" if first is last else f"{first.number} to {last.number}"
        conclude(
            target.json,
            {"tickets": [asdict(ticket) for ticket in tickets]},
            f"stored at site {first.site} as number {numbers}",
            f"next: swarm results --agent {agent} --nats {target.nats}",
        )


async def results(
    agent: Agent,
    target: Target,
    site: Site = "",
    follow: bool = option(False, "Go on with what comes, until Ctrl-C.", "-f", "--follow"),
    count: int = seldom(0, "Answers to wait for; 0: no number.", min=0),
) -> int:
    """Print the answers to what an agent has submitted, in order; each is printed once.

    Exits with 1 where an answer is a failure, or none is there."""
    async with client_of(target) as client:
        answers = client.results(agent, site=site, follow=follow or count > 0)
        given = failed = dropped = 0
        async for answer in answers:
            given += 1
            failed += answer.result.status is not Status.OK
            dropped = answer.dropped
            _print(answer, target.json)
            if given == count:
                await answers.read()
                break
        if not given and not target.json:
            err.print(f"no answer to {agent} is there: `swarm site status` tells what waits")
        if dropped and not target.json:
            err.print(f"{dropped} requests of this site were dropped: its store was full")
        return 1 if failed or not given else 0


def _print(answer: swarm.Answer, as_json: bool) -> None:
    """One answer on one line, or as a JSON document."""
    result = answer.result
    if as_json:
        doc: dict[str, Any] = {"number": answer.number, "dropped": answer.dropped}
        print_json(doc | {"result": oip.as_doc(result)})
        return
    if result.status is Status.OK:
        shapes = ", ".join(f"{name} {list(a.shape)}" for name, a in result.outputs.items())
        text = f"{result.model}@{result.version} {shapes}" + (" degraded" * result.degraded)
    else:
        text = f"{result.status}: {result.message}"
    out.print(f"{answer.number} {result.id} {text}", markup=False, soft_wrap=True)
