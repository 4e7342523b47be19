"""What an edge's cameras tell as figures."""

from __future__ import annotations

from nodes.figures import FiguresOf, counter, counters, durations, gauge

FRAMES = ("frames", "dropped", "torn", "sent")
FIGURES = (
    FiguresOf(
        "cameras",
        {
            "swarm_camera_up": gauge(
                "1 where a camera gives frames.", lambda camera: camera.get("state") == "running"
            ),
            "swarm_camera_age_seconds": durations("From a frame's capture to its result.", "age_s"),
            "swarm_camera_decode_seconds": gauge(
                "Usual time from a packet to its picture.", "decode_ms", unit=1e3
            ),
            "swarm_camera_frames": counters(
                "Frames by what became of them.", "", "outcome", FRAMES
            ),
            "swarm_camera_reconnects": counter("Losses of a camera.", "reconnects"),
        },
        labels={"camera": "name"},
        most=64,
    ),
)
