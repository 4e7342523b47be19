"""A contender whose requests go in at one end of a pipeline and come out at the other."""

from __future__ import annotations

from abc import abstractmethod

from bench.rivals.contract import Contender
from bench.rivals.workload import Tensors


class Pipelined(Contender):
    """Requests, one at a time or several in flight, by a way to send and a way to receive."""

    @abstractmethod
    def _send(self, inputs: Tensors) -> bytes:
        """Send a request; returns its token."""

    @abstractmethod
    def _receive(self) -> tuple[bytes, Tensors]:
        """The next answer, and its request's token."""

    def request(self, inputs: Tensors) -> Tensors:
        """The answer to one request. Raises `ValueError` for another request's answer."""
        sent = self._send(inputs)
        token, outputs = self._receive()
        if token != sent:
            raise ValueError("the answer belongs to another request")
        return outputs

    def concurrent(self, inputs: Tensors, in_flight: int, total: int) -> list[Tensors]:
        """The answers to `total` requests, of which `in_flight` are under way at a time."""
        pending = {self._send(inputs) for _ in range(min(in_flight, total))}
        sent = len(pending)
        answers = []
        while pending:
            token, outputs = self._receive()
            pending.remove(token)
            answers.append(outputs)
            if sent < total:
                pending.add(self._send(inputs))
                sent += 1
        return answers
