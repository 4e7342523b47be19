"""Asks a person: a picture that a guard does not know the like of, once a second at most.

JSON on `swarm.<mesh>.review.<node>`: `source`, `sequence`, `age_ms`, `distance` (1.0: the most that
is usual), and `jpeg`, base64, where the camera has no mask. With a mask no picture leaves.
"""

from __future__ import annotations

import base64
import json
import logging
import time

import cv2

from nodes.cameras.eye import Eye
from nodes.cameras.guard.guard import GuardAction
from nodes.cameras.mask.door import Cleared, Unmasked, image_of
from nodes.life.node import Node
from swarm.errors import SwarmError

log = logging.getLogger("swarm.camera")

EVERY = 1.0  # seconds, for each camera
WIDEST, QUALITY = 640, 80  # of the JPEG


class Reviews:
    """Of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._asked: dict[str, float] = {}

    def ask(self, eye: Eye, cleared: Cleared) -> None:
        """Publish the frame, where the camera's guard says so and it is time."""
        guard, frame, now = eye.guard, cleared.frame, time.monotonic()
        if guard is None or guard.rule.action is not GuardAction.REVIEW:
            return
        if now - self._asked.get(frame.source, -EVERY) < EVERY:
            return
        self._asked[frame.source] = now
        document: dict[str, object] = {
            "source": frame.source,
            "sequence": frame.sequence,
            "age_ms": round((now - frame.captured) * 1e3, 3),
            "distance": guard.verdict.distance,
        }
        if isinstance(cleared, Unmasked):
            document["jpeg"] = _jpeg(cleared)
        subject = self._node.mesh.subjects.under("review", node_id=self._node.id)
        try:
            self._node.mesh.link.publish(subject, json.dumps(document).encode())
        except SwarmError as error:
            log.warning("a person is not asked: %s", error)


def _jpeg(cleared: Unmasked) -> str:
    """Pixels alone: no EXIF, no comment, no profile of colours."""
    image = image_of(cleared)
    height, width = image.shape[:2]
    if width > WIDEST:
        size = (WIDEST, max(1, round(height * WIDEST / width)))
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    options = [cv2.IMWRITE_JPEG_QUALITY, QUALITY]
    _, data = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), options)
    return base64.b64encode(data.tobytes()).decode()
