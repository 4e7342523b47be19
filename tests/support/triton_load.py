"""A program that asks a gateway all the time by tritonclient, as its defaults are.

    python triton_load.py http|grpc ADDRESS MODEL FILE.npz RATE

FILE has the model's input and the output that belongs to it, under their names. Requests start
`RATE` times a second, whether those before are answered or not, from the line `asking` on standard
output until SIGTERM. Then, in one line of JSON: of each request when it began, in seconds of the
system's clock, how many seconds it took, and its error, "" for a right answer.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Named = tuple[str, np.ndarray]
Told = list[tuple[float, float, str]]
AT_A_TIME = 64  # connections of the HTTP client
PATIENCE = 20.0  # seconds for the last answers


def checked(answer: Any, name: str, expected: np.ndarray) -> str:
    """The error of an answer, "" for a right one."""
    got = answer.as_numpy(name)
    right = got is not None and got.shape == expected.shape and np.allclose(got, expected, 1e-4)
    return "" if right else f"a wrong answer: {got!r:.80}"


def over_http(address: str, model: str, given: Named, expected: Named, rate: float) -> Told:
    import gevent
    import gevent.event
    import tritonclient.http as triton

    told: Told = []
    over = gevent.event.Event()
    gevent.signal_handler(signal.SIGTERM, over.set)
    client = triton.InferenceServerClient(address, concurrency=AT_A_TIME)

    def one() -> None:
        began = time.time()
        try:
            error = checked(client.infer(model, [tensor]), *expected)
        except Exception as failure:  # of any kind: it is what the client sees
            error = text_of(failure)
        told.append((began, time.time() - began, error))

    tensor = triton.InferInput(given[0], list(given[1].shape), "FP32")
    tensor.set_data_from_numpy(given[1])
    one()
    print("asking", flush=True)
    running = []
    paced(rate, lambda seconds: over.wait(seconds), lambda: running.append(gevent.spawn(one)))
    gevent.joinall(running, PATIENCE)
    return told + [(time.time(), PATIENCE, "no answer")] * sum(not each.dead for each in running)


def over_grpc(address: str, model: str, given: Named, expected: Named, rate: float) -> Told:
    import threading

    import tritonclient.grpc as triton

    told: Told = []
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    client = triton.InferenceServerClient(address)
    tensor = triton.InferInput(given[0], list(given[1].shape), "FP32")
    tensor.set_data_from_numpy(given[1])
    started = 0

    def one() -> None:
        nonlocal started
        began = time.time()
        started += 1

        def done(result: Any, error: Any) -> None:
            said = checked(result, *expected) if error is None else text_of(error)
            told.append((began, time.time() - began, said))

        client.async_infer(model, [tensor], done)

    client.infer(model, [tensor])
    print("asking", flush=True)
    paced(rate, over.wait, one)
    until = time.monotonic() + PATIENCE
    while len(told) < started and time.monotonic() < until:
        time.sleep(0.02)
    return told + [(time.time(), PATIENCE, "no answer")] * (started - len(told))


def paced(rate: float, over: Callable[[float], Any], one: Callable[[], None]) -> None:
    """Start `rate` requests a second, until `over`, which waits for some seconds, says so."""
    began, number = time.monotonic(), 0
    while not over(max(0.0, began + number / rate - time.monotonic())):
        one()
        number += 1


def text_of(error: Any) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def main() -> None:
    protocol, address, model, file, rate = sys.argv[1:]
    with np.load(file) as known:
        given, expected = ((name, known[name]) for name in known.files)
    ask = {"http": over_http, "grpc": over_grpc}[protocol]
    print(json.dumps(ask(address, model, given, expected, float(rate))), flush=True)


if __name__ == "__main__":
    main()
