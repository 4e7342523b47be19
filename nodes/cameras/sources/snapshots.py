"""Sources over HTTP: a stream, a file, or one picture that is asked for again and again."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from functools import partial
from http.client import HTTPException
from urllib.parse import unquote, urlsplit, urlunsplit

from nodes.cameras.sources.address import Address
from nodes.cameras.sources.feed import BadPicture, CameraFeed, CameraLost, TakenPicture
from nodes.cameras.sources.pictures import pixels_of
from nodes.cameras.sources.streams import IsPicture, StreamFeed

USUAL_RATE = 1.0  # pictures a second, without `--rate`
WITHIN = 5.0  # seconds for one picture
MOST_BYTES = 64 << 20  # of one
CHUNK = 1 << 16


def open_http(address: Address, rate: float, plays: bool) -> CameraFeed:
    """What the answer says that it is. Raises `CameraLost`."""
    try:
        return StreamFeed(address, plays)
    except IsPicture:
        return SnapshotFeed(address, rate)


class SnapshotFeed:
    """A `CameraFeed` of a camera that gives its newest picture to each who asks: asked `rate` times
    a second. The user and the password of the URL are for basic and digest authentication."""

    ends = False
    polls = True

    def __init__(self, address: Address, rate: float) -> None:
        parts = urlsplit(address.where)
        self._url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        known = (
            urllib.request.HTTPPasswordMgrWithDefaultRealm()
        )  # no password before it is asked for
        if parts.username:
            word = unquote(parts.password or "")
            known.add_password(None, self._url, unquote(parts.username), word)
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPDigestAuthHandler(known), urllib.request.HTTPBasicAuthHandler(known)
        )
        self._pause = 1 / (rate or USUAL_RATE)
        self._due = time.monotonic()

    def read(self) -> TakenPicture | None:
        now = time.monotonic()
        time.sleep(max(0.0, self._due - now))
        self._due = max(now, self._due) + self._pause
        data = self._asked()
        return TakenPicture(partial(pixels_of, data), time.monotonic())

    def close(self) -> None:
        self._opener.close()

    def _asked(self) -> bytes:
        until, data = time.monotonic() + WITHIN, bytearray()
        try:
            with self._opener.open(self._url, timeout=WITHIN) as answer:
                while part := answer.read1(CHUNK):
                    data += part
                    if len(data) > MOST_BYTES:
                        raise BadPicture(f"a picture of more than {MOST_BYTES >> 20} MB")
                    if time.monotonic() > until:
                        raise CameraLost(f"no whole picture within {WITHIN:g} s")
        except urllib.error.HTTPError as error:
            error.close()
            raise CameraLost(f"HTTP {error.code} {error.reason}") from None
        except (OSError, HTTPException, ValueError) as error:
            raise CameraLost(f"it does not answer: {error}") from None
        return bytes(data)
