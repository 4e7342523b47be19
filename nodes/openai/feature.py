"""OpenAI's protocol at the gateway's HTTP door: chats and texts of language models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodes.gateway.added import Described, FeatureOfDoor, GatewayContext

if TYPE_CHECKING:
    from nodes.gateway.door import Page
    from nodes.gateway.page.lines import Lines
    from swarm.model import ModelInfo


def _app(behind: GatewayContext) -> Page:
    from nodes.openai.app import OpenAiApp

    return OpenAiApp(behind)


def _described() -> Described:
    from nodes.openai.described import DESCRIBED

    return DESCRIBED


def _lines(info: ModelInfo, url: str, key: str) -> Lines | None:
    from nodes.openai.described import completion_lines

    return completion_lines(info.model, url, key) if info.generates else None


FEATURE = FeatureOfDoor(
    name="openai",
    below="v1",
    app=_app,
    described=_described,
    lines=_lines,
    quotas={"tokens": "tokens of prompts and answers"},
)
