"""Sources over HTTP: snapshots, MJPEG, playlists and videos, from servers as cameras have them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from support.camera import encoder, scene, write_video
from support.waiting import eventually
from support.web import Web, serving

from nodes.cameras.frame import Frame
from nodes.cameras.sources.address import SourceKind, addresses
from nodes.cameras.sources.camera import Camera

Opened = Callable[..., list[Camera]]
SMALL = (320, 240)


async def frames_of(camera: Camera, count: int = 1_000_000) -> list[Frame]:
    found: list[Frame] = []
    async with asyncio.timeout(30.0):
        while len(found) < count and (frame := await camera.latest()) is not None:
            found.append(frame)
    return found


def snapshot(number: int, form: str = ".jpg") -> bytes:
    return cv2.imencode(form, scene(number, SMALL)[..., ::-1])[1].tobytes()


@pytest.mark.parametrize(
    ("path", "form", "kind"),
    [
        ("/snap.jpg", ".jpg", "image/jpeg"),
        ("/cgi-bin/snapshot.cgi?channel=1&area=0,0,9,9", ".jpg", "application/octet-stream"),
        ("/now.png", ".png", "image/png"),
        ("/now", ".webp", "image/webp"),
    ],
)
async def test_a_snapshot_is_asked_for_at_the_rate(
    opened: Opened, path: str, form: str, kind: str
) -> None:
    numbers = iter(range(1000))

    def answer(path: str) -> tuple[int, str, Iterator[bytes]]:
        return 200, kind, iter([snapshot(next(numbers), form)])

    with serving(Web(answer, login="me:a b")) as web:
        url = web.url.replace("://", "://me:a%20b@")
        (camera,) = opened(f"door={url}{path}", rate=20.0)
        began = time.monotonic()
        frames = await frames_of(camera, 8)
        assert time.monotonic() - began >= 6 / 20
        await camera.close()
    assert {frame.image.shape for frame in frames} == {(240, 320, 3)}
    assert len({frame.image.tobytes() for frame in frames}) == 8  # each is a new one
    assert set(web.asked) == {path}
    assert "a%20b" not in str(camera.status())


async def test_a_password_is_not_sent_in_the_clear_to_who_asks_for_a_digest(
    opened: Opened,
) -> None:
    with serving(Web(lambda path: (200, "image/jpeg", iter([snapshot(0)])), "digest")) as web:
        (camera,) = opened(f"{web.url.replace('://', '://me:word@')}/snap.jpg", rate=50.0)
        await frames_of(camera, 3)
        await camera.close()
    assert web.schemes == {"Digest"}


async def test_a_snapshot_that_fails_is_asked_for_again_with_a_reason(opened: Opened) -> None:
    answers = iter([200, 200, 503, 200])

    def answer(path: str) -> tuple[int, str, Iterator[bytes]]:
        return next(answers, 200), "image/jpeg", iter([snapshot(0)])

    with serving(Web(answer)) as web:
        (camera,) = opened(f"{web.url}/snap.jpg", rate=50.0)
        await frames_of(camera, 1)
        await eventually(lambda: "HTTP 503" in str(camera.status()["error"]))
        await frames_of(camera, 2)
        assert camera.status()["reconnects"] == 1
        await camera.close()


async def test_a_server_without_the_picture_is_said(opened: Opened) -> None:
    with serving(Web(lambda path: (404, "text/plain", iter([b"no"])))) as web:
        (camera,) = opened(f"{web.url}/snap.jpg")
        await eventually(lambda: "404" in str(camera.status()["error"]))
        await camera.close()


async def test_mjpeg_is_live(opened: Opened) -> None:
    def parts() -> Iterator[bytes]:
        for number in range(10_000):
            data = snapshot(number)
            head = f"--b\r\nContent-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
            yield head.encode() + data + b"\r\n"
            time.sleep(0.03)

    kind = "multipart/x-mixed-replace; boundary=b"
    with serving(Web(lambda path: (200, kind, parts()))) as web:
        (camera,) = opened(f"{web.url}/video")
        frames = await frames_of(camera, 5)
        assert frames[0].image.shape == (240, 320, 3)
        assert not camera.waits
        await camera.close()


def playlist(folder: Path, count: int) -> None:
    options = {"hls_time": "1", "hls_list_size": "0"}
    with av.open(str(folder / "index.m3u8"), "w", format="hls", options=options) as container:
        stream = encoder(container, "libx264", 30, SMALL)
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(scene(number, SMALL))
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)


def files(folder: Path) -> Callable[[str], tuple[int, str, Iterator[bytes]]]:
    def answer(path: str) -> tuple[int, str, Iterator[bytes]]:
        file = folder / path.partition("?")[0].lstrip("/")
        kind = "video/mp4" if file.suffix == ".mp4" else "application/octet-stream"
        return 200, kind, iter([file.read_bytes()])

    return answer


async def test_a_playlist_with_an_end_is_played_whole(opened: Opened, tmp_path: Path) -> None:
    playlist(tmp_path, 75)
    with serving(Web(files(tmp_path))) as web:
        (camera,) = opened(f"{web.url}/index.m3u8?token=a,b")
        frames = await frames_of(camera)
    assert [frame.sequence for frame in frames] == list(range(75))
    assert {frame.file for frame in frames} == {"index.m3u8"}
    assert camera.status()["state"] == "ended"


async def test_a_playlist_without_an_end_plays_at_its_own_pace(
    opened: Opened, tmp_path: Path
) -> None:
    """Its parts come at once; a camera's pictures come one after the other."""
    playlist(tmp_path, 90)
    index = tmp_path / "index.m3u8"
    index.write_text(index.read_text().replace("#EXT-X-ENDLIST", ""))
    with serving(Web(files(tmp_path))) as web:
        (camera,) = opened(f"{web.url}/index.m3u8")
        frames = await frames_of(camera, 20)
        pauses = np.diff([frame.captured for frame in frames])
        assert np.median(pauses) == pytest.approx(1 / 30, rel=0.3)
        assert not camera.waits
        await camera.close()


@pytest.mark.parametrize("path", ["/clip.mp4", "/files/7"])
async def test_a_video_is_played_whole(opened: Opened, tmp_path: Path, path: str) -> None:
    write_video(tmp_path / "clip.mp4", 45, size=SMALL, faststart=True)
    answer = files(tmp_path)
    with serving(Web(lambda path: answer("/clip.mp4"))) as web:
        (camera,) = opened(f"{web.url}{path}")
        frames = await frames_of(camera)
    assert [frame.sequence for frame in frames] == list(range(45))
    assert frames[-1].at == pytest.approx(44 / 30, abs=0.01)
    assert camera.status()["state"] == "ended"


async def test_a_video_that_breaks_off_was_not_played_whole(opened: Opened, tmp_path: Path) -> None:
    write_video(tmp_path / "clip.mp4", 45, faststart=True)
    size = (tmp_path / "clip.mp4").stat().st_size
    with serving(Web(files(tmp_path), cut=size * 2 // 3)) as web:
        (camera,) = opened(f"{web.url}/clip.mp4")
        frames = await frames_of(camera)
    assert 0 < len(frames) < 45
    assert camera.status()["state"] == "failed"
    assert "stopped" in str(camera.status()["error"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("http://h/a?x=1,2,3", [("cam-1", "http://h/a?x=1,2,3")]),
        (
            "a=http://h/1,2.jpg,b=rtsp://h/x,y",
            [("a", "http://h/1,2.jpg"), ("b", "rtsp://h/x,y")],
        ),
        ("http://h/a?roi=1,w=2", [("cam-1", "http://h/a?roi=1,w=2")]),
        ("http://h/a,http://h/b", [("cam-1", "http://h/a"), ("cam-2", "http://h/b")]),
        ("http://h/a,/dev/null", [("cam-1", "http://h/a"), ("cam-2", "/dev/null")]),
        ("udp://:1,,udp://:2,", [("cam-1", "udp://:1"), ("cam-2", "udp://:2")]),
    ],
)
def test_a_comma_in_a_url_belongs_to_it(text: str, found: list[tuple[str, str]]) -> None:
    made = addresses(text)
    assert [(each.name, each.where) for each in made] == found
    assert made[0].kind in (SourceKind.HTTP, SourceKind.UDP)
