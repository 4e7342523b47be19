"""Language models on the command line: the folder of one, the toys, and what a manifest tells."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shards.manifest import Manifest
from shards.runtimes.memory import need_of
from swarm.scratch import Scratch

if TYPE_CHECKING:
    from nodes.feature import Source
    from shards.language.decoder import LanguageHints

# They come with this package, and are meant where nothing has that name.
TOY, TOYS = "toy", ("toy", "toy-draft")
# Sizes of memory that small computers have, and tokens of a session, to show the sessions that fit.
_MEMORIES_GB = (1, 2, 4, 8, 16)
_SESSION_TOKENS = 2048


def source_of(path: str) -> Source | None:
    """What reads a folder, or a toy, and the texts beside the model; None for another path."""
    if path in TOYS and not Path(path).exists():
        return lambda: _toy(path)
    return (lambda: _folder(Path(path))) if Path(path).is_dir() else None


def _folder(folder: Path) -> tuple[Path, LanguageHints]:
    from shards.language.folder import read_folder

    return read_folder(folder)


def _toy(name: str) -> tuple[bytes, LanguageHints]:
    from shards.language import toy

    with Scratch("toy") as folder:
        toy.write_toy(folder, toy.TOYS[name])
        model, hints = _folder(folder)
        return model.read_bytes(), hints


def lines_of(manifest: Manifest) -> list[str]:
    """A language model's sizes, and the sessions that fit beside a stage; none for other models."""
    from shards.language.decoder import Decoder

    decoder = Decoder.of(manifest)
    if decoder is None:
        return []
    tokens = min(_SESSION_TOKENS, decoder.context)
    lines = [
        f"a language model: {decoder.layers} layers, {decoder.heads} heads, {decoder.kv_heads} of "
        f"keys and values, width {decoder.width}, {decoder.vocabulary} tokens, context "
        f"{decoder.context}",
        f"keys and values: {decoder.kv_bytes_per_token} bytes a token of a session",
        f"texts: {', '.join(text.file for text in decoder.files) or 'none, token ids alone'}",
        f"held against the whole: {decoder.proof or 'it was too large to run'}",
    ]
    if decoder.quantized is not None:
        lines.append(f"quantized: {decoder.quantized}")
    for part, shard in zip(decoder.stages, manifest.shards, strict=True):
        session = decoder.stage_bytes_per_token(part.stage) * tokens
        first, last = part.layers
        held = f"layers {first} to {last - 1}" if last > first else "the head alone"
        fit = [
            f"{gigabytes} GB: {left // session}"
            for gigabytes in _MEMORIES_GB
            if session and (left := gigabytes * 10**9 - need_of(shard.bytes)) >= session
        ]
        lines.append(
            f"stage {part.stage}: {held}, {shard.bytes / 1e6:.1f} MB, a session of {tokens} tokens "
            f"{session / 1e6:.1f} MB" + (f"; sessions in {', '.join(fit)}" if fit else "")
        )
    return lines
