"""A message on its way to a stage: what it carries, until when, and its bytes for each try."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from swarm.samehost.compact import features_parts
from swarm.samehost.lending import NO_LOAN, Lender, Loan
from swarm.samehost.memory import MIN_BYTES
from swarm.subjects import ANY
from swarm.wire.messages import Features
from swarm.wire.tensors import Part, Tensors, are_referred


def are_large(tensors: Tensors) -> bool:
    """Whether any tensor is large enough for shared memory."""
    for array in tensors.values():  # noqa: SIM110  # a generator takes twice as long
        if array.nbytes >= MIN_BYTES:
            return True
    return False


def _always() -> bool:
    return True


@dataclass(slots=True, eq=False)
class Parcel:
    """Features for a stage. One loan of shared memory spans all tries at sending it.

    clock: seconds. expires: its moment at which the request's budget ends. lane: the lane that the
    routing policy chose. fast: in fast mode. doubtful: the processes of this host may hang, so no
    short cut is taken. wanted(): asked before a late parcel is stored; False where another node has
    the work. coded: the tensors as they go by the server, where they are not to go as plain bytes.
    """

    features: Features
    expires: float
    _: KW_ONLY
    lane: str = ANY
    fast: bool = False
    doubtful: bool = False
    wanted: Callable[[], bool] = _always
    clock: Callable[[], float] = time.monotonic
    loan: Loan = NO_LOAN
    coded: list[Part] | None = None

    def lend(self, lender: Lender) -> None:
        """Put large tensors into shared memory, once. Raises `InvalidArgument`."""
        if self.loan.claims or are_referred(self.features.tensors):
            return
        self.loan = lender.lend(self.features.tensors)
        # Kept beside their copies, the arrays would lie in memory twice.
        self.features.tensors = self.loan.tensors or self.features.tensors

    def compact(self) -> list[Part]:
        """The bytes for a process of this host. Raises `InvalidArgument`."""
        self._count_down()
        return features_parts(self.features, self.loan)

    def encoded(self) -> list[Part]:
        """The bytes for the server: MessagePack. Raises `InvalidArgument`."""
        self._count_down()
        return self.features.parts(self.loan.packed if self.loan.claims else None, self.coded)

    def released(self) -> None:
        """No process reads the loan: free it now, not by age."""
        if self.loan.claims:
            self.loan.unread()
            self.loan.take_back()

    def _count_down(self) -> None:
        self.features.budget_us = int((self.expires - self.clock()) * 1e6)
