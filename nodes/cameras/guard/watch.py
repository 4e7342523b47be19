"""A camera's guards, one for each version of the model that answers, and what they hold back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from nodes.cameras.guard.artifact import read, save
from nodes.cameras.guard.guard import CutGuard, GuardAction, GuardRule, GuardVerdict
from nodes.cameras.guard.statistics import Fitted
from swarm.errors import BadKey, InvalidArgument, PermissionDenied, Unauthenticated
from swarm.model import ModelInfo
from swarm.security.identity import Identity
from swarm.security.trusted_keys import TrustedKeys

log = logging.getLogger("swarm.camera")

MOST_KEPT = 2  # versions: the one that serves, and the one before or under rollout


class Held(PermissionDenied):
    """What the mask or the guard does not let leave."""


class GuardFiles:
    """Where guards of a camera are kept between two lives of a node. identity: signs; its own
    signatures count, and those of trusted keys."""

    def __init__(self, path: str, identity: Identity, trusted: TrustedKeys | None) -> None:
        self._path = Path(path)
        self._identity = identity
        self._trusted = trusted

    def read(self, info: ModelInfo) -> Fitted | None:
        """None where there is no file, or none that may be used: the log says why."""
        if not self._path.exists():
            return None
        try:
            fitted = read(self._path, info.model, info.version, self._trusts)
        except (OSError, InvalidArgument, Unauthenticated) as error:
            log.warning("the guard learns anew: %s", error)
            return None
        log.info("the guard goes on with %s", self._path)
        return fitted

    def save(self, fitted: Fitted, info: ModelInfo) -> None:
        try:
            save(fitted, self._path, info.model, info.version, self._identity)
        except OSError as error:
            log.warning("what the guard has learned is not kept: %s", error)

    def _trusts(self, key: str) -> bool:
        return key == self._identity.public or (
            self._trusted is not None and self._trusted.allows(key)
        )


class CameraGuard:
    """The guard of one camera. is_masked: then it holds back what is too far, and everything while
    alarmed, whatever the rule's action is."""

    def __init__(self, rule: GuardRule, is_masked: bool, files: GuardFiles | None = None) -> None:
        self.rule = rule
        self._holds = is_masked or rule.action is GuardAction.DROP
        self._files = files
        self._guards: dict[str, CutGuard] = {}
        self._saved: set[str] = set()
        self._newest = ""

    @property
    def verdict(self) -> GuardVerdict:
        """Of the last frame."""
        guard = self._guards.get(self._newest)
        return GuardVerdict("warming", None, 0.0) if guard is None else guard.verdict

    def leaves(self, info: ModelInfo, tensors: Mapping[str, np.ndarray], captured: float) -> None:
        """Look at what is about to leave. captured: seconds. Raises `Held` where it may not, and
        `InvalidArgument` for a model without edge layers: its cut would be the picture."""
        if info.edge is None:
            raise InvalidArgument(
                f"--guard needs a model with edge layers, {info.model}@{info.version} has none: "
                "`swarm model split --edge-layers N`"
            )
        guard = self._guard(info)
        verdict = guard.look(next(iter(tensors.values())), captured)
        if guard.fitted is not None and info.version not in self._saved:
            self._saved.add(info.version)
            if self._files is not None:
                self._files.save(guard.fitted, info)
        if self._holds and (verdict.is_alarmed or verdict.is_far):
            raise Held("--guard: the picture is not of the kind that this camera usually takes")

    def _guard(self, info: ModelInfo) -> CutGuard:
        guard = self._guards.get(info.version)
        if guard is None:
            kept = None if self._files is None else self._files.read(info)
            guard = CutGuard(self.rule, kept)
            if kept is not None:
                self._saved.add(info.version)
            while len(self._guards) >= MOST_KEPT:
                self._guards.pop(next(iter(self._guards)))
            self._guards[info.version] = guard
        self._newest = info.version
        return guard

    def status(self) -> dict[str, object]:
        """For status documents."""
        guard = self._guards.get(self._newest)
        document: dict[str, object] = {"action": str(self.rule.action), "version": self._newest}
        return document | ({"state": "warming"} if guard is None else guard.status())


def guard_files(
    path: str, identity: Identity | None, trusted: TrustedKeys | None
) -> GuardFiles | None:
    """None for no path. Raises `BadKey` for a node without an identity."""
    if not path:
        return None
    if identity is None:
        raise BadKey("--guard-file is signed by the node: give it --identity FILE or --state-dir")
    return GuardFiles(path, identity, trusted)
