"""Language models: sessions of tokens at the stages of nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nodes.feature import (
    Asking,
    Commands,
    Feature,
    Given,
    KindOfServing,
    Service,
    Source,
    Surroundings,
)
from nodes.language.settings import GenerationOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodes.demo.frame import StoryOptions
    from nodes.up.companion import Companion
    from nodes.versions.loaded import Loaded, Loading
    from nodes.versions.serving import Serving, SharedByStages
    from shards.manifest import Manifest
    from swarm.requests.witnessing import Notices


async def _prepare(loading: Loading) -> Callable[[], Loaded]:
    from nodes.language.loaded import prepare

    return await prepare(loading)


def _serving(shared: SharedByStages, loaded: Loaded) -> Serving:
    from nodes.language.serving import GenerationServing

    return GenerationServing(shared, loaded)


KIND = KindOfServing(_prepare, _serving)


def _services(around: Surroundings, notices: Notices) -> list[Service]:
    from nodes.config import COVERS

    connection = around.connection
    config = connection.config
    if config.stage != 1 and config.role not in COVERS:
        return []
    from nodes.language.answering import GenerateService

    pulling = around.versions.pulling
    return [GenerateService(connection.mesh, config.model_name, pulling, notices)]


def _serves(manifest: Manifest) -> KindOfServing | None:
    return KIND if "decoder" in manifest.parts else None


def _source(path: str) -> Source | None:
    from nodes.language.commands.models import source_of

    return source_of(path)


def _describes(manifest: Manifest) -> list[str]:
    from nodes.language.commands.models import lines_of

    return lines_of(manifest)


def _asks(manifest: Manifest, mesh: str) -> Asking | None:
    from nodes.language.asking import asking

    return asking(manifest, mesh) if _serves(manifest) else None


def _options() -> Mapping[str, Sequence[type]]:
    from nodes.language.up import ChatStory, UpDraftOptions

    return {"up": [UpDraftOptions], "demo": [ChatStory]}


def _companions(given: Given) -> list[Companion]:
    from nodes.language.up import companions

    return companions(given)


def _stories(given: Given) -> list[Callable[[StoryOptions], int]]:
    from nodes.language.up import ChatStory

    options = given.of(ChatStory)
    if options is None or not options.chat:
        return []
    from nodes.language.demo import tell

    return [tell]


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
    settings=[GenerationOptions],
    serves=_serves,
    source=_source,
    describes=_describes,
    commands=COMMANDS,
    services=_services,
    options=_options,
    needs={"demo --chat": ["language"]},
    companions=_companions,
    stories=_stories,
    asks=_asks,
)
