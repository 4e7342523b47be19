"""Runs that no request bounds: a model on which they never end is refused, by each command."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.commands import said
from support.endless import CUT, WIDTH, endless_model

from shards.errors import RunTooLong
from shards.runtimes import run_limit
from shards.runtimes.ort import OrtRuntime, make_session
from shards.runtimes.runtime import CancelToken
from shards.split.split import split

ENDLESS = {"input": np.zeros((1, WIDTH), np.float32)}
USUAL = {"input": np.ones((1, WIDTH), np.float32)}


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SWARM_RUN_LIMIT", "")  # the command sets it, for what it starts
    run_limit.use(0.2)
    yield
    run_limit.use(run_limit.DEFAULT)


def test_a_run_that_does_not_end_is_ended_and_the_session_runs_on() -> None:
    session = make_session(endless_model())
    for _ in range(2):
        with pytest.raises(RunTooLong, match=r"after 0\.2 s.*--example.*--run-limit"):
            session.run(None, ENDLESS)
        (out,) = session.run(None, USUAL)
        assert (out == 2).all()


def test_a_runtime_s_run_without_a_request_is_bounded_and_one_of_a_request_by_its_token() -> None:
    runtime = OrtRuntime(endless_model())
    with pytest.raises(RunTooLong):
        runtime.run(ENDLESS)
    token = CancelToken()
    timer = threading.Timer(0.5, token.cancel)
    timer.start()
    with pytest.raises(Exception, match="cancelled"):
        runtime.run(ENDLESS, token)
    assert token.cancelled, "no other bound ended it"
    assert runtime.run(USUAL)["out"].shape == (1, WIDTH)


def test_runs_of_several_threads_have_a_bound_each() -> None:
    session, ended = make_session(endless_model()), list[str]()

    def run() -> None:
        try:
            session.run(None, ENDLESS)
        except RunTooLong as error:
            ended.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert len(ended) == 4


@pytest.mark.parametrize("limit", [0.0, -1.0, float("inf"), float("nan")])
def test_a_limit_that_is_none_is_refused(limit: float) -> None:
    with pytest.raises(ValueError, match="number of seconds above 0"):
        run_limit.use(limit)


def test_an_example_on_which_it_ends_is_all_that_a_split_needs() -> None:
    with pytest.raises(RunTooLong):
        split(endless_model(), name="m", cuts=[CUT], example=ENDLESS)
    assert split(endless_model(), name="m", cuts=[CUT], example=USUAL).manifest.stages


COMMANDS = [
    ["model", "split", "{model}", "-o", "{folder}/out", "--stages", "2"],
    ["model", "split", "{model}", "-o", "{folder}/out", "--stages", "2", "--example", "{data}"],
    ["model", "quantize", "{model}", "-o", "{folder}/small.onnx", "--fp16", "--force"],
    ["model", "quantize", "{model}", "-o", "{folder}/small.onnx", "--calibrate", "{data}"],
    ["model", "plan", "{model}", "--devices", "{devices}"],
    pytest.param(["up", "--model", "{model}", "--stages", "2"], marks=pytest.mark.benchmark),
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_each_command_ends_on_a_model_that_never_does(words: list[str], tmp_path: Path) -> None:
    if words[1] in (of_feature := {"quantize": "nodes.quantize", "plan": "nodes.auto"}):
        pytest.importorskip(of_feature[words[1]])
    places = {"folder": tmp_path, "model": tmp_path / "m.onnx", "data": tmp_path / "data.npz"}
    places["model"].write_bytes(endless_model(never_ends=True))
    np.savez(places["data"], **USUAL)
    places["devices"] = tmp_path / "devices.toml"
    places["devices"].write_text('[[device]]\nname = "a"\nmemory = "1GB"\n')
    words = [word.format(**places) for word in words]
    done = said("--run-limit", "200ms", *words)
    assert done.code == 1, done
    assert "after 0.2 s" in done.stderr, done
    assert "--run-limit" in done.stderr
    assert "Traceback" not in done.stderr
