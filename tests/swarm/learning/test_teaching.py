"""Samples go to the learner of this host by a socket of this user alone, and errors come back."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from support.waiting import eventually

import swarm
from swarm.errors import (
    DeadlineExceeded,
    DecodeError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    SwarmError,
    Unavailable,
)
from swarm.learning import teaching
from swarm.learning.teaching import MOST_TEACHING, Taught, listening, teach
from swarm.wire.maps import pack, unpack_map

IMAGES = {"image": np.arange(24, dtype=np.float32).reshape(2, 3, 4)}
LABELS = np.array([1, 0])


class Learner:
    def __init__(self, node: str = "learner-1") -> None:
        self.node = node
        self.calls: list[tuple[str, dict[str, np.ndarray], np.ndarray]] = []
        self.error: SwarmError | None = None
        self.hold = asyncio.Event()
        self.hold.set()
        self.begun = 0

    def describe(self) -> Taught:
        return Taught(self.node, "1", 0, 0, ())

    async def take(self, version: str, inputs: dict[str, np.ndarray], labels: np.ndarray) -> Taught:
        self.begun += 1
        await self.hold.wait()
        if self.error is not None:
            raise self.error
        self.calls.append((version, inputs, labels))
        return Taught(self.node, "1", len(labels) - 1, 1, (0, 1))

    async def test(self, version: str, inputs: dict[str, np.ndarray], labels: np.ndarray) -> Taught:
        return Taught(self.node, "1", 0, 0, (), float(labels.mean()))


@pytest.fixture
def directory() -> Iterator[str]:
    """A short path: a socket's path has 107 bytes at most."""
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder) / "teach")


@asynccontextmanager
async def learning(directory: str, *nodes: str, model: str = "m") -> AsyncIterator[list[Learner]]:
    learners = [Learner(node) for node in nodes or ("learner-1",)]
    async with AsyncExitStack() as stack:
        for learner in learners:
            await stack.enter_async_context(
                listening("default", model, learner.node, learner, directory)
            )
        yield learners


async def give(directory: str, labels: np.ndarray = LABELS, **more: object) -> Taught:
    given: dict[str, object] = {"node": "", "timeout": 5.0}
    return await teach("default", "m", "", IMAGES, labels, directory=directory, **(given | more))  # type: ignore[arg-type]


async def test_samples_arrive_as_they_were_given(directory: str) -> None:
    async with learning(directory) as (learner,):
        taught = await give(directory)
    assert taught == Taught("learner-1", "1", 1, 1, (0, 1))
    ((version, inputs, labels),) = learner.calls
    assert version == ""
    np.testing.assert_array_equal(inputs["image"], IMAGES["image"])
    np.testing.assert_array_equal(labels, LABELS)


async def test_a_test_gives_an_accuracy_and_teaches_nothing(directory: str) -> None:
    async with learning(directory) as (learner,):
        assert (await give(directory, only_test=True)).accuracy == 0.5
    assert learner.calls == []


async def test_large_samples_arrive_whole(directory: str) -> None:
    images = {"image": np.random.default_rng(0).standard_normal((300, 4096)).astype(np.float32)}
    async with learning(directory) as (learner,):
        await teach(
            "default", "m", "1", images, np.zeros(300, int), timeout=10, directory=directory
        )
    np.testing.assert_array_equal(learner.calls[0][1]["image"], images["image"])


async def test_the_socket_is_of_its_user_alone_and_goes_with_its_learner(directory: str) -> None:
    async with listening("default", "m", "n", Learner(), directory) as path:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
    assert not Path(directory).exists()  # noqa: ASYNC240


async def test_a_directory_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    with pytest.raises(PermissionError):
        async with listening("default", "m", "n", Learner(), str(tmp_path)):
            pass


async def test_an_error_of_the_learner_is_raised_at_the_teacher(directory: str) -> None:
    async with learning(directory) as (learner,):
        for error in (InvalidArgument("label 10 is out of range"), ResourceExhausted("full", 0.7)):
            learner.error = error
            with pytest.raises(type(error), match=str(error)) as raised:
                await give(directory)
            assert getattr(raised.value, "retry_after", 0.0) == getattr(error, "retry_after", 0.0)
        learner.error = None
        await give(directory)  # it goes on


async def test_without_a_learner_the_error_says_how_to_start_one(directory: str) -> None:
    with pytest.raises(NotFound, match="swarm-node --role learner --model m"):
        await give(directory)
    async with learning(directory, model="another"):
        with pytest.raises(NotFound):
            await give(directory)


async def test_of_several_learners_one_has_to_be_named(directory: str) -> None:
    async with learning(directory, "a", "b") as (a, b):
        with pytest.raises(InvalidArgument, match="name one of a, b"):
            await give(directory)
        assert (await give(directory, node="b")).node == "b"
        with pytest.raises(NotFound, match="there are a, b"):
            await give(directory, node="c")
    assert (len(a.calls), len(b.calls)) == (0, 1)


async def test_a_named_learner_that_is_slow_to_answer_is_waited_for(directory: str) -> None:
    with socket.socket(socket.AF_UNIX) as busy:
        async with learning(directory, "busy"):
            path = f"{directory}/{next(iter(os.listdir(directory)))}"
            os.unlink(path)
            busy.bind(path)
            busy.listen()
            with pytest.raises(DeadlineExceeded):
                await give(directory, node="busy", timeout=0.1)


async def test_a_socket_that_a_dead_process_left_is_no_learner(directory: str) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        async with learning(directory) as (learner,):
            prefix = next(iter(os.listdir(directory))).partition("-")[0]
            dead.bind(f"{directory}/{prefix}-dead")
            dead.close()
            assert (await give(directory)).node == learner.node


async def test_a_learner_that_starts_removes_the_sockets_of_dead_ones(directory: str) -> None:
    async with learning(directory):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(f"{directory}/0-dead")
        async with learning(directory, "another"):
            assert len(os.listdir(directory)) == 2
    assert not Path(directory).exists()  # noqa: ASYNC240


async def test_a_learner_that_hangs_ends_the_call_in_time(directory: str) -> None:
    async with learning(directory) as (learner,):
        learner.hold.clear()
        with pytest.raises(DeadlineExceeded, match=r"0\.2 s"):
            await give(directory, timeout=0.2)


async def test_too_many_teachers_at_once_are_refused(directory: str) -> None:
    async with learning(directory) as (learner,):
        learner.hold.clear()
        waiting = [asyncio.create_task(give(directory)) for _ in range(MOST_TEACHING)]
        await eventually(lambda: learner.begun == MOST_TEACHING)
        with pytest.raises(ResourceExhausted, match="being taught already") as refused:
            await give(directory)
        assert refused.value.retry_after == 0.5
        learner.hold.set()
        assert len(await asyncio.gather(*waiting)) == MOST_TEACHING


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xc1garbage",
        pack({"v": 2, "kind": "teach"}),
        pack({"v": 1, "kind": "teach"}),
        pack({"v": 1, "kind": "teach", "version": 7, "labels": {}, "tensors": {}}),
        pack({"v": 1, "kind": "teach", "labels": {}, "tensors": {}}),
        pack(
            {
                "v": 1,
                "kind": "teach",
                "tensors": {},
                "labels": {"labels": {"datatype": "INT64", "shape": [1], "codec": "shm"}},
            }
        ),
    ],
)
async def test_a_malformed_request_is_answered_and_the_next_one_is_served(
    directory: str, message: bytes
) -> None:
    async with learning(directory) as (learner,):
        path = f"{directory}/{os.listdir(directory)[0]}"
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(len(message).to_bytes(4, "little") + message)
        size = int.from_bytes(await reader.readexactly(4), "little")
        doc = unpack_map(await reader.readexactly(size), 1 << 20)
        assert doc["status"] == "INVALID_ARGUMENT"
        writer.close()
        await give(directory)
        assert len(learner.calls) == 1


async def test_a_claim_of_more_than_the_limit_is_refused_before_it_is_read(directory: str) -> None:
    async with learning(directory):
        path = f"{directory}/{os.listdir(directory)[0]}"
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write((1 << 30).to_bytes(4, "little"))
        size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 30), "little")
        assert b"at most" in await reader.readexactly(size)
        assert await reader.read() == b""
        writer.close()


async def test_samples_beyond_the_limit_are_refused_at_the_teacher(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teaching, "LARGEST", 100)
    async with learning(directory):
        with pytest.raises((InvalidArgument, DecodeError), match="several calls"):
            await give(directory, labels=np.zeros(500, np.int64))


async def test_a_learner_that_ends_in_mid_call_is_an_error_and_no_hang(directory: str) -> None:
    async with learning(directory) as (learner,):
        learner.hold.clear()
        call = asyncio.create_task(give(directory))
        await eventually(lambda: learner.begun == 1)
    with pytest.raises(Unavailable):
        await call


def test_the_package_has_the_names_of_teaching() -> None:
    assert swarm.Taught is Taught
    assert "Taught" in swarm.__all__
    assert callable(swarm.Mesh.teach)
