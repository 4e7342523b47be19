"""What other features add to the HTTP door: paths, their part of the OpenAPI document, lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nodes.feature import Feature
from nodes.features import features

if TYPE_CHECKING:
    from nodes.gateway.access.callers import OnRefused
    from nodes.gateway.call import Callers
    from nodes.gateway.door import Page
    from nodes.gateway.models import Models
    from nodes.gateway.page.lines import Lines
    from nodes.gateway.settings import GatewayOptions
    from swarm.mesh import Mesh
    from swarm.model import ModelInfo


@dataclass(frozen=True, slots=True)
class GatewayContext:
    """What an application behind the door works with. on_refused: is told of callers that may ask
    again later."""

    mesh: Mesh
    models: Models
    callers: Callers
    options: GatewayOptions
    on_refused: OnRefused


@dataclass(frozen=True, slots=True)
class Described:
    """A part of the OpenAPI document. paths: of each its method, what it does, the schema of its
    body, "" for none, and of its answer. error: the schema of its errors. streams: schemas of
    answers that may come as events too."""

    paths: Mapping[str, tuple[str, str, str, str]]
    schemas: Mapping[str, dict[str, Any]]
    error: str = "Error"
    streams: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class FeatureOfDoor(Feature):
    """below: the first part of its paths. app(behind): the ASGI application that answers there.
    described: of it. lines(info, url, key): lines that ask a model, None where the model is asked
    by the protocol of the gateway; see `nodes.gateway.page.lines.lines_for`.
    quotas: fields of a caller's block, and of what each is a number a second."""

    below: str
    app: Callable[[GatewayContext], Page]
    described: Callable[[], Described] = field(default=lambda: Described({}, {}))
    lines: Callable[[ModelInfo, str, str], Lines | None] = lambda info, url, key: None
    quotas: Mapping[str, str] = field(default_factory=dict)


def added() -> list[FeatureOfDoor]:
    """Those that are there."""
    return [each for each in features() if isinstance(each, FeatureOfDoor)]
