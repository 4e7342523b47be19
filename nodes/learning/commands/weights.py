"""`swarm model weights` and `swarm model rollback --weights`."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Table

from nodes.acts import person
from nodes.cli.acts import on_record
from nodes.cli.command import option, seldom
from nodes.cli.model import rollback as roll_back_version
from nodes.cli.options import MODEL, ServedModel, SignedTarget, Target
from nodes.cli.with_mesh import client_of, named_version
from nodes.console import conclude, out, print_json
from swarm.errors import InvalidArgument
from swarm.learning.weights import Weights
from swarm.security.identity import Identity
from swarm.security.trusted_keys import own_key


async def weights(model: ServedModel, target: Target) -> None:
    """Show a model's weight versions: accuracy, who minted them, who taught."""
    async with client_of(target, signs=False) as client:
        name, version = await named_version(client, model)
        ledger = (await Weights(client.link, client.subjects).read(name, version)).document
        rows: list[dict[str, Any]] = []
        for record in ledger.records if ledger is not None else ():
            rows.append(
                {
                    "weights": record.n,
                    "present": ledger is not None and record.n == ledger.n,
                    "accuracy": record.accuracy,
                    "held_out": record.samples,
                    "by": record.by,
                    "key": record.key,
                    "taught": list(record.taught),
                    "epoch": record.epoch,
                    "restores": record.restores,
                    "at": datetime.fromtimestamp(record.at, UTC).isoformat(timespec="seconds"),
                    "bytes": sum(tensor.nbytes for tensor in record.tensors.values()),
                    "hash": record.hash,
                }
            )
        present = ledger.n if ledger is not None else 0
        if target.json:
            print_json({"model": name, "version": version, "present": present, "weights": rows})
            return
        if not rows:
            out.print(f"{name}@{version} serves its base: it has learned nothing yet")
            out.print(f"next: swarm-node --role learner --model {name}, then swarm teach {name} …")
            return
        out.print(_table(f"{name}@{version}", rows))
        out.print(f"next: swarm model rollback {name} --weights N (0 for the base)")


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title)
    for heading in ("weights", "accuracy", "held out", "minted by", "taught by", "epoch", "at"):
        table.add_column(heading)
    for row in rows:
        number = f"{row['weights']}{' (serves)' if row['present'] else ''}"
        if row["restores"] is not None:
            number += f" = {row['restores']} again"
        accuracy = "" if row["accuracy"] is None else f"{row['accuracy']:.3f}"
        table.add_row(
            number,
            accuracy,
            str(row["held_out"]),
            row["by"],
            ", ".join(row["taught"]),
            str(row["epoch"]),
            row["at"],
        )
    return table


async def rollback(
    model: Annotated[str, MODEL, typer.Argument(help="NAME; with --weights also NAME@VERSION.")],
    target: SignedTarget,
    weights: int = option(
        -1,
        "Bring this weight version of the model back on the whole fleet (0: the base); deltas "
        "that are under way are void.",
    ),
    identity: str = seldom(
        "",
        "File of the key pair that signs a rollback of weights, made when missing; needed where "
        "nodes have a list of those who may teach.",
    ),
) -> None:
    """Let the version before the present one serve all traffic again; or older weights."""
    if weights != -1:
        await _roll_back_weights(model, weights, identity, target)
        return
    await roll_back_version(model, target)


async def _roll_back_weights(model: str, number: int, identity: str, target: Target) -> None:
    async with client_of(target, signs=False) as client:
        name, version = await named_version(client, model)
        if number < 0:
            raise InvalidArgument(f"--weights {number}: weight versions count from 0, the base")
        signer = Identity.load_or_make(identity) if identity else own_key()
        kept = Weights(client.link, client.subjects, signer)
        by = f"operator {person()}".strip()[:128]
        record = await kept.roll_back(name, version, number, by=by, at=time.time())
        await on_record(client, "rollback-weights", name, version, weights=number)
        doc = {
            "model": name,
            "version": version,
            "restored": number,
            "weights": record.n,
            "epoch": record.epoch,
        }
        what = f"weights {number}" if number else "the base's weights"
        conclude(
            target.json,
            doc,
            f"{name}@{version}: {what} are back, as version {record.n}; deltas are void",
            f"next: swarm model weights {name}",
        )
