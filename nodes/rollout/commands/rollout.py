"""`swarm model promote --canary`, and `swarm model status` of a rollout."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.table import Table

import swarm
from nodes.cli.acts import on_record
from nodes.cli.command import option, seldom
from nodes.cli.model import promoted, promoted_version, served_document, show_served
from nodes.cli.options import MODEL, ModelName, SignedTarget, Target
from nodes.cli.upkept import upkept_document, upkept_lines
from nodes.cli.with_mesh import client_of
from nodes.console import conclude, out, print_json
from nodes.versions.upkeep import upkeep_by_operator
from swarm.errors import InvalidArgument, NotFound, Untrusted
from swarm.ids import ulid
from swarm.model import unknown_model
from swarm.models.registry import InForce
from swarm.rollout import RolloutPlan, RolloutProgress, Statement, plan_of, share_of
from swarm.rollout.rollouts import roll_out, rollout_of
from swarm.routing import BadDesiredState

# Seconds in which a judge states how the guards stand, also behind the end of a rollout.
LISTEN, LISTEN_AT_END = 1.5, 2.5


@dataclass(frozen=True)
class RolloutOptions:
    """Of `swarm model promote`."""

    canary: str = option(
        "", "Let the version prove itself: it begins with this share of the traffic, as 10%."
    )
    guard: str = option(
        "",
        'What must hold, as "p99<20ms,errors<1%,agree>0.98": a breach rolls back by itself. '
        "Empty: nothing.",
    )
    step: str = option(
        "",
        "So much more traffic, each time that the guards have held for so long; 10%/1m when empty.",
    )
    shadow: str = option(
        "",
        "The version also works on copies of this share of the other requests, as 5%; its "
        "answers are compared, and thrown away.",
    )
    samples: int = seldom(
        0, "Requests without which a guard says nothing, and a step is not left; 50 when 0.", min=0
    )
    agree: str = seldom(
        "", "How --shadow compares answers: top-1 (when empty), exact, or relative:0.01."
    )


def asked_plan(options: RolloutOptions, version: str) -> RolloutPlan | None:
    """None where no option asks for a rollout. Raises `InvalidArgument`."""
    given = {name: word for name, word in vars(options).items() if word and name != "canary"}
    if not options.canary:
        if given:
            flags = ", ".join(f"--{name}" for name in given)
            raise InvalidArgument(f"{flags} is for a rollout: add --canary 10%")
        return None
    return plan_of(ulid(), version, options.canary, **given)


@dataclass(frozen=True)
class RolloutStanding:
    """A rollout as the mesh has it at present. heard: the last statement, or None."""

    present: InForce
    plan: RolloutPlan
    progress: RolloutProgress
    heard: Statement | None

    @property
    def state(self) -> str:
        if self.present.aborted:
            return "rolled-back"
        return "done" if self.progress.done else "running"

    def document(self) -> dict[str, Any]:
        """For --json."""
        heard, plan = self.heard, self.plan
        document: dict[str, Any] = {
            "version": plan.version,
            "plan": plan.id,
            "state": self.state,
            "share": share_of(plan, self.progress),
            "step": self.progress.step,
            "last_step": plan.last_step,
            "age_s": round(self.present.age, 3),
        }
        if self.present.aborted:
            document["reason"] = self.present.aborted
        if heard is not None:
            document |= {"ready": heard.ready, "held_s": heard.held, "verdict": str(heard.verdict)}
            document["guards"] = [
                {
                    "guard": guard.text,
                    "verdict": str(word),
                    "seen": total.n,
                    "bad": total.bad,
                    "seen_lately": recent.n,
                    "bad_lately": recent.bad,
                }
                for guard, word, total, recent in zip(
                    plan.guards, heard.verdicts, heard.total, heard.recent, strict=True
                )
            ]
        return document


async def standing(client: swarm.Mesh, model: str) -> RolloutStanding | None:
    """The rollout in a model's desired state, heard of from its judges; None without one. Raises
    `NotFound` where nothing serves."""
    present = await client.registry.in_force(model)
    if present is None:
        raise unknown_model(model)
    plan = present.state.rollout
    if plan is None:
        return None
    client.rollouts.follow(model, present)
    followed = rollout_of(client.rollouts, model)
    assert followed is not None
    began = time.monotonic()
    listen = LISTEN_AT_END if present.age >= plan.lasts else LISTEN
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0 if present.aborted else listen):
            while not followed.fresh(time.monotonic()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    heard = max(followed.fresh(began), key=lambda s: s.held, default=None)
    return RolloutStanding(present, followed.plan, followed.advance(time.monotonic()), heard)


async def promote(
    model: Annotated[str, MODEL, typer.Argument(help="NAME@VERSION.")],
    options: RolloutOptions,
    target: SignedTarget,
) -> None:
    """Let a version serve all traffic, at once or by steps; nodes drain the old one afterwards."""
    async with client_of(target) as client:
        name, version = promoted_version(model)
        plan = asked_plan(options, version)  # before anything is asked: nothing is half applied
        before = None
        # Nothing serves yet, or a state that is not relied on: `promote` says so itself.
        with contextlib.suppress(NotFound, Untrusted, BadDesiredState):
            before = await standing(client, name)
        done = before.plan.id if before is not None and before.state == "done" else ""
        if plan is None:
            await promoted(client, name, version, target, done)
            return
        present = await roll_out(client.registry, name, plan, done)
        await on_record(client, "roll-out", name, version, previous=present, plan=plan.id)
        begun = {"model": name, "version": version, "present": present}
        kept = await upkeep_by_operator(client, [name])
        conclude(
            target.json,
            begun | {"plan": plan.document()} | upkept_document(kept),
            f"{name}@{version} begins with {plan.canary:g} % beside {present}, and has 100 % after "
            f"{plan.last_step} more steps of {plan.every:g} s, if its guards hold; next: "
            f"swarm model status {name}",
            *upkept_lines(kept),
        )


async def status(model: ModelName, target: Target) -> int:
    """Show what serves, and how a rollout and its guards stand; exit 1 if it was rolled back."""
    async with client_of(target) as client:
        name = model.partition("@")[0]
        rollout = await standing(client, name)
        present = await client.registry.in_force(name) if rollout is None else rollout.present
        doc = served_document(name, present)
        if rollout is not None:
            doc["rollout"] = rollout.document()
        print_json(doc) if target.json else _show(doc)
        return 1 if rollout is not None and rollout.state == "rolled-back" else 0


def _show(doc: dict[str, Any]) -> None:
    show_served(doc)
    rollout = doc.get("rollout")
    if rollout is None:
        return
    words = {"running": "has", "done": "is rolled out: it has", "rolled-back": "was rolled back:"}
    line = f"version {rollout['version']} {words[rollout['state']]} "
    if rollout["state"] == "rolled-back":
        line += rollout["reason"]
    else:
        line += f"{rollout['share']:g} % of the rest, step {rollout['step'] + 1} of "
        line += f"{rollout['last_step'] + 1}"
        if rollout["state"] == "running" and not rollout.get("ready", False):
            heard = "verdict" in rollout
            line += "; some stage has no node of it yet" if heard else "; no judge is heard"
    out.print(line, markup=False, soft_wrap=True)
    if rollout.get("guards"):
        table = Table("guard", "verdict", "seen", "bad", "seen lately", "bad lately")
        for row in rollout["guards"]:
            table.add_row(*(str(value) for value in row.values()))
        out.print(table)
