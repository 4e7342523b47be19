"""The links' document as tables."""

from __future__ import annotations

from typing import Any

from bench.fleets.links.measure import ALONE
from rich.table import Table

from nodes.console import out

HEADINGS = ("codec", "p50 ms", "p99 ms", "frames/s", "KB down", "KB up", "answered", "changed")
LEGEND = """\
jpeg: the picture as JPEG 90 to a core that runs all and answers with boxes. edge: the first layers
at the edge, the rest at the core. stages: the second of two stages behind the link. Results of the
latter two are the model's whole output. codec: of the features; results are i8 where these are i8,
i6 or i4. KB: on the wire for each frame, TCP and IP included. changed: detections that are missed
or made up against the exact model."""


def show(document: dict[str, Any]) -> None:
    """Print the document of `measure_links`."""
    alone = document[ALONE]
    out.print(
        f"{document['model']}, {document['detections']} detections. All at the edge, on this "
        f"machine's core: p50 {alone['p50_ms']} ms, p99 {alone['p99_ms']} ms, "
        f"{alone['frames_per_s']} frames/s",
        highlight=False,
    )
    if document["note"]:
        out.print(f"not the detector: {document['note']}", highlight=False)
    out.print(model_table(document["model_of_cost"]["model"]))
    for link in document["links"]:
        out.print(table(link))
        if link["failed"]:
            out.print(f"not all of it was measured: {link['failed']}", highlight=False)
        for row in link["beside"]:
            out.print(
                f"requests of 100 bytes beside the edge's features, {row['connections']} "
                f"connection(s): p50 {row['small_p50_ms']:g} ms, p99 {row['small_p99_ms']:g} ms",
                highlight=False,
            )
    out.print(LEGEND, highlight=False)


def model_table(rows: list[dict[str, Any]]) -> Table:
    """Where a split pays, by calculation from parts that were measured here."""
    ways = [name for name in rows[0] if name not in ("slower", "mbit")]
    shown = Table(
        "device",
        "Mbit/s",
        *ways,
        title="by calculation: ms a frame / frames a second, round trip 10 ms",
    )
    for row in rows:
        times = [f"{row[way][0]:g} / {row[way][1]}" for way in ways]
        shown.add_row(f"{row['slower']} x slower", str(row["mbit"]), *times)
    return shown


def table(link: dict[str, Any]) -> Table:
    """One link."""
    title = f"{link['mbit']:g} Mbit/s, round trip {link['round_trip_ms']:g} ms"
    shown = Table("way", *HEADINGS, title=f"{title}, {link['loss']:g} % lost")
    for row in link["ways"]:
        shown.add_row(
            row["way"],
            row["codec"],
            f"{row['p50_ms']:g}",
            f"{row['p99_ms']:g}",
            f"{row['frames_per_s']:g}",
            f"{row['bytes_down'] / 1e3:.1f}",
            f"{row['bytes_up'] / 1e3:.1f}",
            f"{row['answered']}/{row['frames']}",
            str(row["changed"]),
        )
    return shown
