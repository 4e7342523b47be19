"""Language models: sessions of tokens at the stages of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodes.feature import (
    Asking,
    Commands,
    Feature,
    Service,
    Surroundings,
    later,
)
from nodes.language.settings import GenerationOptions

if TYPE_CHECKING:
    from shards.manifest import Manifest
    from swarm.requests.witnessing import Notices


DECODER = "decoder"  # the part of a language model's manifest


def _services(around: Surroundings, notices: Notices) -> list[Service]:
    from nodes.config import COVERS

    connection = around.connection
    config = connection.config
    if config.stage != 1 and config.role not in COVERS:
        return []
    from nodes.language.answering import GenerateService

    pulling = around.versions.pulling
    return [GenerateService(connection.mesh, config.model_name, pulling, notices)]


def _asks(manifest: Manifest, mesh: str) -> Asking | None:
    from nodes.language.asking import asking

    return asking(manifest, mesh) if DECODER in manifest.parts else None


COMMANDS: Commands = {
    "Try": {
        "generate": "nodes.language.commands.generate:generate",
        "chat": "nodes.language.commands.chat:chat",
    },
    # In the place of the command of `quantize`, which stands before this feature.
    "Make": {"model quantize": "nodes.language.commands.quantize:quantize"},
}
FEATURE = Feature(
    "language",
    figures="nodes.language.figures",
    extras={"tokenizers": "language", "jinja2": "language", "llguidance": "grammar"},
    settings=[GenerationOptions],
    loads={DECODER: later("nodes.language.loaded:prepare")},
    source=later("nodes.language.commands.models:source_of"),
    describes=later("nodes.language.commands.models:lines_of"),
    commands=COMMANDS,
    services=_services,
    options={"up": ["nodes.language.up:UpDraftOptions"], "demo": ["nodes.language.up:ChatStory"]},
    needs={"demo --chat": ["language"]},
    companions=later("nodes.language.up:companions"),
    stories={"chat": "nodes.language.demo:tell"},
    asks=_asks,
)
