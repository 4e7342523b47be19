"""Language models: sessions of tokens at the stages of nodes."""

from __future__ import annotations

from nodes.feature import Feature
from nodes.language.settings import GenerationOptions

FEATURE = Feature("language", settings=[GenerationOptions])
