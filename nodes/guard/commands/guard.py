"""`swarm model guard`: calibration data become a guard of a version, before it is pushed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nodes.cli.command import option, seldom
from nodes.cli.model_split import Folder, checked_files
from nodes.cli.options import Json
from nodes.console import conclude
from nodes.event_loop import end_with_supervisor
from nodes.progress import progress
from shards.guard.part import PART
from shards.manifest import FILE_NAME, Manifest, read_dir
from shards.samples import Samples, read_samples
from swarm.errors import InvalidArgument
from swarm.security.files import replace

READABLE = 0o644  # a service of another user may push the folder


@dataclass(frozen=True, kw_only=True)
class GuardOptions:
    """Of `swarm model guard`."""

    samples: str = option(
        ...,
        "An .npz file with an array for each input of the model, axis 0 the samples: what the "
        "model is meant for, and was not trained on.",
    )
    false_alarms: float = option(
        0.01,
        "The share of such inputs that may be taken for unfamiliar. It takes four samples for one "
        "divided by it: 400 for 0.01.",
    )
    refuse: bool = option(
        False, "Unfamiliar requests are refused (INVALID_ARGUMENT), instead of flagged."
    )
    check: str = seldom(
        "",
        "More .npz files, separated by commas: the share of their samples that the guard takes "
        "for unfamiliar is told.",
    )


async def guard(folder: Folder, options: GuardOptions, json: Json = False) -> None:
    """Give a version a guard: nodes tell, for each request, how far it is from calibration data.

    Changes the folder that `swarm model split` has written; push it then."""
    end_with_supervisor()
    from shards.guard.fit import first_stage, guarded

    manifest, _ = checked_files(folder)
    if (kind := manifest.kind) is not None or "composition" in manifest.parts:
        about = "a composition" if kind is None else kind.about
        raise InvalidArgument(f"{folder} is {about}: a guard is for models of tensors")
    _, fetch = read_dir(folder)
    read = {name: read_samples(name, manifest.inputs) for name in _files(options.check)}
    with progress(f"calibrating a guard of {folder}", silent=json):
        made, reference = guarded(
            manifest,
            fetch,
            read_samples(options.samples, manifest.inputs),
            false_alarms=options.false_alarms,
            refuse=options.refuse,
        )
        run = first_stage(manifest, fetch)

        def unfamiliar(samples: Samples) -> float:
            return float(np.mean([reference.scores(run(feed)).max() > 1 for feed in samples]))

        shares = {name: round(unfamiliar(samples), 4) for name, samples in read.items()}
    _write(folder, made, reference.to_bytes())
    document: dict[str, Any] = {**made.parts["guard"], "checked": shares}
    looked = ", ".join(dict.fromkeys(each.view.tensor for each in reference.views))
    conclude(
        json,
        document,
        f"{made.model}@{made.version} has a guard: it looks at {looked}, and takes "
        f"{options.false_alarms:.2%} of usual inputs for unfamiliar",
        *(f"{name}: {share:.1%} are unfamiliar" for name, share in shares.items()),
        f"next: swarm model push {folder}",
    )


def _files(listed: str) -> list[str]:
    return [name for name in listed.split(",") if name]


def _write(folder: str, manifest: Manifest, artifact: bytes) -> None:
    """The artifact, then the manifest that names it: the version is whole at each moment."""
    (file,) = manifest.parts[PART.field]["files"]
    replace(Path(folder) / file["file"], artifact, READABLE)
    replace(Path(folder) / FILE_NAME, manifest.to_json(), READABLE)
