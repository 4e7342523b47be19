"""`swarm model quantize`: a smaller model, written where it pays."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
from rich.table import Table

from nodes.cli.arrays import read_inputs
from nodes.cli.model_split import ModelSource, read_model
from nodes.cli.new_path import new_path
from nodes.cli.options import Target
from nodes.cli.with_mesh import connect
from nodes.console import duration, err, out, print_json
from nodes.event_loop import end_with_supervisor
from nodes.features import first
from nodes.progress import phases
from nodes.quantize.commands.options import QuantizeFlags
from shards.quantize import quantize as quantizing
from shards.quantize.tools import RANGES
from swarm.errors import InvalidArgument
from swarm.scratch import Scratch

PREFIX = "mesh:"


async def quantize(file: ModelSource, request: QuantizeFlags, target: Target) -> int:
    """Make a model smaller and faster, and measure whether that pays and what it costs.

    Weights and features get 8 bits, unless another way is asked for. Exits with 1 where nothing was
    written."""
    end_with_supervisor()
    with Scratch("samples") as folder:
        calibrate = await _calibration(request, target, folder)
        # The work blocks the event loop, whose own answer to Ctrl-C is to cancel at the next wait.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        options = _options(request)
        output = new_path(request.output, "file")
        with phases(silent=target.json) as tell:
            result = quantizing.quantize(
                read_model(file),
                calibrate=calibrate or None,
                keep_accuracy=request.keep_accuracy or None,
                example=read_inputs(request.example) if request.example else None,
                shapes=request.shapes(),
                options=options,
                tell=tell,
            )
        written = result.report.gain or request.force
        if written:
            _write(output, result.model)
        if target.json:
            print_json({**result.report.to_dict(), "written": str(output) if written else None})
        else:
            _show(result.report)
            left = f"written to {output}; next: swarm up --model {output}"
            if not written:
                left = f"{file} is left as it is, nothing is written; --force writes it"
            err.print(left, markup=False, highlight=False, soft_wrap=True)
        return 0 if written else 1


async def _calibration(request: QuantizeFlags, target: Target, folder: Path) -> str:
    """The .npz file to calibrate with: the one that was named, or one of samples that pass now."""
    if not request.calibrate.startswith(PREFIX):
        return request.calibrate
    if request.samples < 1:
        raise InvalidArgument(f"--samples {request.samples}: at least one")
    _options(request)
    new_path(request.output, "file")
    take = first(lambda feature: feature.samples)
    if take is None:
        raise InvalidArgument(f"--calibrate {request.calibrate}: nothing here takes live samples")
    model = request.calibrate.removeprefix(PREFIX)
    async with connect(target) as client:
        arrays = await take(client, model, request.samples, duration(request.wait))
    file = folder / "samples.npz"
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return str(file)


def _options(request: QuantizeFlags) -> quantizing.QuantizeOptions:
    """The options, checked. Raises `InvalidArgument`."""
    wanted = {
        "int8": request.int8,
        "dynamic": request.dynamic,
        "fp16": request.fp16,
        "weights-only": request.weights_only,
    }
    modes = [mode for mode, asked in wanted.items() if asked] or ["int8"]
    if len(modes) > 1:
        raise InvalidArgument(f"--{' and --'.join(modes)} exclude each other: give one")
    if request.ranges not in ("auto", *RANGES):
        raise InvalidArgument(f"--ranges {request.ranges!r}: it is auto, {', '.join(RANGES)}")
    if request.bits not in (4, 8):
        raise InvalidArgument(f"--bits {request.bits}: a weight has 4 or 8")
    (mode,) = (known for known in quantizing.MODES if known == modes[0])
    return quantizing.QuantizeOptions(
        mode=mode,
        per_channel=request.per_channel,
        ranges=request.ranges,
        bits=request.bits,
        max_drop=request.max_drop,
    )


def _write(output: Path, data: bytes) -> None:
    """The whole file or none."""
    partial = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        partial.write_bytes(data)
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


def _show(report: quantizing.QuantizeReport) -> None:
    table = Table("", "before", "after", title=f"{report.mode} {report.ranges}".strip())
    table.add_row("KB", f"{report.bytes_before / 1024:.0f}", f"{report.bytes_after / 1024:.0f}")
    table.add_row("ms a run, 1 thread", f"{report.ms_before:.3f}", f"{report.ms_after:.3f}")
    if report.accuracy_before is not None and report.accuracy_after is not None:
        before, after = report.accuracy_before, report.accuracy_after
        table.add_row(f"accuracy ({report.samples} samples)", f"{before:.4f}", f"{after:.4f}")
    origin = f"{report.samples} {report.judged_on} samples"
    table.add_row(f"outputs' distance ({origin})", "0", f"{report.distance:.4f}")
    kept = len(report.float_layers)
    table.add_row("layers in floating point", str(report.layers), str(kept))
    out.print(table)
    for method, lost in report.tried.items():
        if method:
            out.print(f"ranges by {method}: a loss of {lost:.4f}", markup=False, highlight=False)
    for method, why in report.skipped.items():
        err.print(f"ranges by {method} were left out: {why}", markup=False, highlight=False)
    for name in report.float_layers:
        out.print(f"stays in floating point: {name}", markup=False, highlight=False)
    out.print(report.verdict, style="bold", markup=False, highlight=False)
