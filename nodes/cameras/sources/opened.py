"""`--source` as sources: each kind has its library, imported only where it is used."""

from __future__ import annotations

from functools import partial

from nodes.cameras.sources.address import Address, SourceKind, addresses
from nodes.cameras.sources.camera import BLOCK, DROP, Camera, waits_for_nobody
from nodes.cameras.sources.feed import CameraFeed
from swarm.errors import InvalidArgument

INSTALL = "pip install 'swarm-mesh[perception]'"


def open_sources(text: str, on_full: str, rate: float) -> list[Camera]:
    """A camera for each part of `--source`, each with its thread. on_full, rate: as of `Camera`.
    Raises `InvalidArgument`. In an event loop."""
    found = addresses(text)
    for each in found:
        if on_full == BLOCK and each.is_live:
            raise InvalidArgument(waits_for_nobody(each))
        _check_library(each)
    opens = partial(open_feed, rate=rate, plays=on_full == DROP)
    return [Camera(each, opens, on_full, rate) for each in found]


def open_feed(address: Address, rate: float, plays: bool) -> CameraFeed:
    """plays: whether what has an end keeps its own pace, as a camera does. Raises `CameraLost`,
    `InvalidArgument`."""
    match address.kind:
        case SourceKind.PICTURES:
            from nodes.cameras.sources.pictures import PictureFeed

            return PictureFeed(address.where, rate, plays)
        case SourceKind.V4L2:
            from nodes.cameras.sources.v4l2 import V4l2Feed

            return V4l2Feed(address.where)
        case SourceKind.PICAMERA:
            from nodes.cameras.sources.picamera import PicameraFeed

            return PicameraFeed(address.where)
        case SourceKind.HTTP:
            from nodes.cameras.sources.snapshots import open_http

            return open_http(address, rate, plays)
        case _:
            from nodes.cameras.sources.streams import StreamFeed

            return StreamFeed(address, plays)


def _check_library(address: Address) -> None:
    """Raises `InvalidArgument` where a library is missing, which no second attempt finds."""
    try:
        import cv2  # noqa: F401

        if address.kind is SourceKind.V4L2:
            import linuxpy.video.device  # noqa: F401
        elif address.kind is SourceKind.PICAMERA:
            import picamera2  # noqa: F401
        elif address.kind is not SourceKind.PICTURES:
            import av  # noqa: F401
    except ModuleNotFoundError as error:
        how = INSTALL
        if error.name == "picamera2":
            how = "apt-get install python3-picamera2, and a venv with --system-site-packages"
        raise InvalidArgument(f"--source {address.shown}: {error}: {how}") from None
