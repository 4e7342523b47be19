"""Sources give the newest frame, stamped when it came, and outlive all that a camera does."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.camera import scene, sending, true_age, write_video
from support.waiting import eventually

from nodes.cameras.frame import Frame
from nodes.cameras.sources.address import SourceKind, addresses, is_camera
from nodes.cameras.sources.camera import MOST_SAID, Camera, Thinning
from nodes.cameras.sources.feed import BadPicture, CameraLost, TakenPicture
from nodes.cameras.sources.pictures import pixels_of
from swarm.errors import InvalidArgument

LIMIT = 30.0
Opened = Callable[..., list[Camera]]


async def frames_of(camera: Camera, count: int = 1_000_000) -> list[Frame]:
    found: list[Frame] = []
    async with asyncio.timeout(LIMIT):
        while len(found) < count and (frame := await camera.latest()) is not None:
            found.append(frame)
    return found


# --- what --source names ------------------------------------------------------------------


def test_sources_are_separated_by_commas_and_may_have_names(tmp_path: Path) -> None:
    (tmp_path / "a,b.mp4").touch()
    text = f"gate=rtsp://user:secret@10.0.0.2/s?token=1,udp://:5000,{tmp_path},v4l2:///dev/video0"
    found = addresses(text)
    assert [each.name for each in found] == ["gate", "cam-2", "cam-3", "cam-4"]
    assert [each.kind for each in found] == [
        SourceKind.RTSP,
        SourceKind.UDP,
        SourceKind.PICTURES,
        SourceKind.V4L2,
    ]
    assert found[0].shown == "rtsp://10.0.0.2/s"
    assert addresses(str(tmp_path / "a,b.mp4"))[0].kind is SourceKind.FILE
    assert [is_camera(each) for each in ("digits", "x.npz", "x.mp4")] == [False, False, True]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("ftp://a/b", "schemes are rtsp"),
        ("/no/such/file.mp4", "nothing of that is there"),
        ("a=udp://:1,a=udp://:2", "two sources are called a"),
        ("a.b=udp://:1", "nothing of that is there|schemes are"),
        (",".join(["udp://:1"] * 65), "64 at most"),
    ],
)
def test_a_source_that_cannot_be_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        addresses(text)


# --- files and folders --------------------------------------------------------------------


async def test_a_file_gives_all_its_frames_where_its_consumer_sets_the_pace(
    opened: Opened, tmp_path: Path
) -> None:
    path = tmp_path / "clip.mp4"
    write_video(path, 40)
    (camera,) = opened(str(path), "block")
    frames = await frames_of(camera)
    assert [frame.sequence for frame in frames] == list(range(40))
    assert frames[0].image.shape == (480, 640, 3)
    assert np.abs(frames[7].image.astype(int) - scene(7)).mean() < 4
    assert (camera.status()["state"], camera.status()["dropped"]) == ("ended", 0)


async def test_a_slow_consumer_gets_the_newest_frame_and_never_an_old_one(
    opened: Opened, tmp_path: Path
) -> None:
    path = tmp_path / "clip.mp4"
    write_video(path, 60)
    (camera,) = opened(str(path), "drop-oldest")
    ages, sequences = [], []
    async with asyncio.timeout(LIMIT):
        while (frame := await camera.latest()) is not None:
            ages.append(time.monotonic() - frame.captured)
            sequences.append(frame.sequence)
            await asyncio.sleep(0.1)  # a consumer of ten frames a second
    assert len(sequences) < 40
    assert camera.status()["dropped"] == 60 - len(sequences)
    assert sequences == sorted(sequences)
    # Through a queue the last one would be as old as the clip is long.
    assert np.median(ages) < 1.0, ages


async def test_a_folder_of_a_hundred_thousand_files_is_no_problem(
    opened: Opened, tmp_path: Path
) -> None:
    good = cv2.imencode(".jpg", scene(0))[1].tobytes()
    (tmp_path / "000000.jpg").write_bytes(good)
    for number in range(1, 100_001):
        (tmp_path / f"{number:06}.jpg").symlink_to("000000.jpg")
    (tmp_path / "notes.txt").touch()
    began = time.process_time()  # of the processor: others want it too
    (camera,) = opened(str(tmp_path), "block")
    frames = await frames_of(camera, 3)
    assert [frame.sequence for frame in frames] == [0, 1, 2]
    assert time.process_time() - began < 10.0


async def test_a_picture_that_is_spoilt_or_too_large_is_said_and_the_next_one_counts(
    opened: Opened, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = cv2.imencode(".jpg", scene(0))[1].tobytes()
    at = good.index(b"\xff\xc0") + 5
    (tmp_path / "1-huge.jpg").write_bytes(
        good[:at] + struct.pack(">HH", 10_000, 10_000) + good[at + 4 :]
    )
    (tmp_path / "2-empty.jpg").touch()
    (tmp_path / "3-cut.png").write_bytes(cv2.imencode(".png", scene(0))[1].tobytes()[:30])
    (tmp_path / "4-no-size.jpg").write_bytes(good[:at] + struct.pack(">HH", 0, 0) + good[at + 4 :])
    (tmp_path / "5-good.jpg").write_bytes(good)
    (camera,) = opened(str(tmp_path), "block")
    frames = await frames_of(camera)
    assert len(frames) == 1
    assert camera.status()["torn"] == 4
    assert "1-huge.jpg has 10000x10000 pixels" in caplog.text
    assert caplog.text.count("4-no-size.jpg") == 1


def test_a_network_gives_no_avif_which_may_be_larger_than_it_says() -> None:
    data = cv2.imencode(".avif", scene(0))[1].tobytes()
    with pytest.raises(BadPicture, match="AVIF"):
        pixels_of(data)


async def test_a_file_that_is_no_video_fails_with_a_reason(opened: Opened, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"no video" * 100)
    (camera,) = opened(str(path))
    assert await frames_of(camera) == []
    assert camera.status()["state"] == "failed"
    assert "no video that FFmpeg reads" in str(camera.status()["error"])


async def test_what_plays_by_itself_begins_when_somebody_looks(
    opened: Opened, tmp_path: Path
) -> None:
    for number in range(3):
        cv2.imwrite(str(tmp_path / f"{number}.png"), scene(number))
    (camera,) = opened(str(tmp_path), "drop-oldest", 10.0)
    # As long as a model takes that loads: nothing may come, so there is no event to wait for.
    await asyncio.sleep(0.5)
    assert (await frames_of(camera, 1))[0].file == "0.png"


@given(st.floats(1, 60), st.floats(0.1, 60), st.integers(0, 1000))
def test_a_rate_is_held_by_whatever_comes(camera: float, rate: float, seed: int) -> None:
    """For a minute, by a clock that trembles by a tenth of the time between two pictures."""
    tremble = np.random.default_rng(seed).uniform(-0.1, 0.1, round(60 * camera))
    moments = (np.arange(round(60 * camera)) + tremble) / camera
    thinning = Thinning(rate)
    taken = sum(thinning.takes(moment) for moment in moments.tolist())
    assert taken == pytest.approx(60 * min(camera, rate), rel=0.12, abs=2)
    assert taken <= 60 * rate + 2


class LiveFeed:
    """A camera of 15 pictures a second, as fast as they are read."""

    ends = polls = False

    def __init__(self, count: int) -> None:
        self.moments = [number / 15 for number in range(count)]

    def read(self) -> TakenPicture | None:
        if not self.moments:
            raise CameraLost("the stream has ended")
        return TakenPicture(lambda: scene(0), self.moments.pop(0))

    def close(self) -> None:
        pass


async def test_a_rate_limits_a_live_camera(udp: str) -> None:
    feed, (address,) = LiveFeed(150), addresses(udp)
    camera = Camera(address, lambda _: feed, rate=2.0)
    await eventually(lambda: camera.status()["state"] == "waiting" and camera.status()["frames"])
    assert camera.status()["frames"] == 150
    assert camera.status()["passed"] == 150 - 21  # of ten seconds, both ends among them
    await camera.close()


class SpoiltFeed:
    """A source whose reads fail at once, each of them, as those of a file may that is torn at its
    end."""

    polls = False

    def __init__(self, ends: bool) -> None:
        self.ends = ends
        self.reads = 0

    def read(self) -> TakenPicture | None:
        self.reads += 1
        raise BadPicture("the stream is torn")

    def close(self) -> None:
        pass


@pytest.mark.parametrize("ends", [True, False])
async def test_a_source_that_gives_nothing_but_faults_is_read_with_pauses_and_given_up(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is given up, a camera is opened anew; of HTTP the answer tells which it is."""
    monkeypatch.setattr("nodes.cameras.sources.camera.NO_PICTURE_FOR", 0.3)
    feed, (address,) = SpoiltFeed(ends), addresses("http://127.0.0.1:9/video")
    camera = Camera(address, lambda _: feed)
    looking = asyncio.create_task(camera.latest())
    await eventually(lambda: "no picture for 0.3 s" in str(camera.status()["error"]))
    assert camera.status()["state"] == ("failed" if ends else "waiting")
    assert 1 < feed.reads < 100
    await camera.close()
    assert await looking is None


def test_a_live_camera_cannot_be_made_to_wait(opened: Opened, udp: str) -> None:
    with pytest.raises(InvalidArgument, match="waits for nobody"):
        opened(udp, "block")


# --- streams ------------------------------------------------------------------------------


@pytest.mark.timing
async def test_a_stream_is_seen_within_milliseconds(opened: Opened, udp: str) -> None:
    """Half of a frame's time: by its defaults FFmpeg holds each frame back until the next one."""
    (camera,) = opened(udp)
    with sending(f"{udp}?pkt_size=1316"):
        ages = []
        for _ in range(60):
            (frame,) = await frames_of(camera, 1)
            ages.append(true_age(frame.image, time.monotonic()))
    assert np.median(ages) < 16.7, ages


async def test_a_camera_that_went_away_is_opened_anew_and_said_once(
    opened: Opened, udp: str, caplog: pytest.LogCaptureFixture
) -> None:
    (camera,) = opened(udp)
    with sending(udp):
        await frames_of(camera, 3)
    await eventually(lambda: camera.status()["state"] == "waiting", "the loss is seen")
    # Another camera at the same place, with another codec and another size.
    with sending(udp, "--codec", "mpeg2video", "--size", "320x240"):
        (frame, *_) = await frames_of(camera, 3)
        assert frame.image.shape == (240, 320, 3)
        assert camera.status()["reconnects"] == 1
        assert caplog.text.count("is lost") == 1


async def test_a_torn_stream_goes_on_and_is_said_a_few_times(
    opened: Opened, udp: str, caplog: pytest.LogCaptureFixture
) -> None:
    (camera,) = opened(udp)
    port, random = int(udp.rpartition(":")[2]), np.random.default_rng(1)
    with sending(f"{udp}?pkt_size=1316"), socket.socket(type=socket.SOCK_DGRAM) as torn:
        await frames_of(camera, 3)
        for _ in range(60):
            # Noise, and packets of the video's own number whose payload is noise.
            packet = bytearray(random.bytes(188 * 7))
            packet[::188] = b"\x47" * 7
            packet[1::188], packet[2::188] = b"\x01" * 7, b"\x00" * 7
            torn.sendto(packet, ("127.0.0.1", port))
            torn.sendto(random.bytes(700), ("127.0.0.1", port))
            await frames_of(camera, 1)
        assert camera.status()["state"] == "running"
    assert caplog.text.count("the next pictures count") <= MOST_SAID


@pytest.mark.benchmark  # a whole story, longer than ten seconds
async def test_a_codec_that_changes_in_mid_stream_is_followed(opened: Opened, udp: str) -> None:
    (camera,) = opened(udp)
    with sending(udp):
        await frames_of(camera, 3)
    with sending(udp, "--codec", "mpeg2video", "--size", "320x240"):
        async with asyncio.timeout(LIMIT):
            while (await frames_of(camera, 1))[0].image.shape != (240, 320, 3):
                pass


async def test_of_a_thousand_frames_a_second_the_newest_is_given(opened: Opened, udp: str) -> None:
    (camera,) = opened(udp)
    with sending(f"{udp}?pkt_size=1316", "--rate", "1000", "--size", "640x32"):
        await frames_of(camera, 1)
        ages, numbers = [], []
        for _ in range(20):
            (frame,) = await frames_of(camera, 1)
            ages.append(true_age(frame.image, time.monotonic()))
            numbers.append(frame.sequence)
            await asyncio.sleep(0.05)
    assert numbers == sorted(set(numbers))
    assert int(str(camera.status()["dropped"])) > 100
    assert np.median(ages[10:]) < 500, ages
