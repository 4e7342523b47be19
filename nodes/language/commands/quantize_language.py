"""`swarm model quantize FOLDER --rows --text FILE`: a smaller language model, and what it cost."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
from rich.table import Table

from nodes.cli.new_path import new_path
from nodes.cli.options import Target
from nodes.console import err, out, print_json
from nodes.event_loop import end_with_supervisor
from nodes.language.commands.models import TOY
from nodes.language.commands.quantize import LanguageFlags
from nodes.progress import phases
from shards.language.folder import read_folder, write_smaller
from shards.language.quantize import (
    MOST_TOKENS,
    LanguageMode,
    LanguageReport,
    quantize_language,
)
from shards.language.texts import Texts
from swarm.errors import InvalidArgument
from swarm.scratch import Scratch

MOST_CHARACTERS = 64 * MOST_TOKENS  # of the text; more would only be tokenized and left


async def run_quantize_language(folder: str, request: LanguageFlags, target: Target) -> int:
    """`swarm model quantize` with a text; returns its exit code: 1 where nothing was written."""
    end_with_supervisor()
    # The work blocks the event loop, whose own answer to Ctrl-C is to cancel at the next wait.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    mode, output, text = _mode(request), new_path(request.output, "folder"), _text(request.text)
    with Scratch("toy") as scratch:
        source = _source(folder, scratch)
        file, hints = read_folder(source)
        tokens = np.array(Texts.of(hints.files).tokenizer.encode(text), np.int64)
        with phases(silent=target.json) as tell:
            model, report = quantize_language(
                file, tokens, mode=mode, max_drop=request.max_drop, tell=tell
            )
        written = report.gain or request.force
        if written:
            write_smaller(source, output, model, report.quantized)
        if target.json:
            print_json({**report.to_dict(), "written": str(output) if written else None})
        else:
            _show(report, len(text))
            left = f"written to {output}; next: swarm up --model {output}"
            if not written:
                left = f"{folder} is left as it is, nothing is written; --force writes it"
            err.print(left, markup=False, highlight=False, soft_wrap=True)
        return 0 if written else 1


def _source(folder: str, scratch: Path) -> Path:
    """The folder of the model. Raises `InvalidArgument`."""
    if Path(folder).is_dir():
        return Path(folder)
    if folder != TOY:
        raise InvalidArgument(
            f"{folder} is no folder: --rows and --text need the tokenizer that lies in one"
        )
    from shards.language.toy import write_toy

    write_toy(scratch)
    return scratch


def _mode(request: LanguageFlags) -> LanguageMode:
    """Raises `InvalidArgument`."""
    others = (request.int8, request.dynamic, request.fp16, bool(request.calibrate))
    if any((*others, bool(request.keep_accuracy))) or request.rows == request.weights_only:
        raise InvalidArgument(
            "a language model takes --text FILE with one of --rows and --weights-only [--bits 4]"
        )
    if request.rows:
        return "rows"
    if request.bits not in (4, 8):
        raise InvalidArgument(f"--bits {request.bits}: a weight has 4 or 8")
    return "int4" if request.bits == 4 else "int8"


def _text(path: str) -> str:
    """The held-out text. Raises `InvalidArgument`."""
    if not path:
        raise InvalidArgument("--rows needs --text FILE: the loss is measured on a held-out text")
    try:
        with Path(path).open(encoding="utf-8") as file:
            return file.read(MOST_CHARACTERS)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"--text {path}: {error}") from None


def _show(report: LanguageReport, characters: int) -> None:
    table = Table("", "before", "after", title=report.mode)
    rows = (
        ("MB", report.bytes_before / 1e6, report.bytes_after / 1e6, "2f"),
        (
            f"cross-entropy, nats a token, of {report.tokens}",
            report.cross_entropy_before,
            report.cross_entropy_after,
            "4f",
        ),
        ("perplexity", *np.exp([report.cross_entropy_before, report.cross_entropy_after]), "2f"),
        ("ms of a token, 1 thread", report.token_ms_before, report.token_ms_after, "3f"),
        ("ms of a chunk of 64", report.chunk_ms_before, report.chunk_ms_after, "3f"),
    )
    for title, before, after, form in rows:
        table.add_row(title, f"{before:.{form}}", f"{after:.{form}}")
    out.print(table)
    if report.tokens == MOST_TOKENS:
        out.print(f"the first {MOST_TOKENS} tokens of {characters} characters were judged")
    out.print(report.verdict, style="bold", markup=False, highlight=False)
