"""The other process of the tests: one ring, one reader, commands as JSON lines on stdin. It starts
without numpy, in half the time."""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time
from typing import Any

import swarm.samehost.memory.ring
from swarm.samehost.memory import Claim, ClaimReader, Ring, ShmError, sweep


def payload(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


class Peer:
    def __init__(self, mesh: str, directory: str) -> None:
        self.mesh = mesh
        self.directory = directory
        self.ring = Ring(mesh, directory=directory)
        self.reader = ClaimReader(mesh, directory=directory)
        self.views: list[memoryview] = []

    def put(self, size: int, seed: int) -> Any:
        claim = self.ring.put([payload(size, seed)])
        return claim.to_wire().hex() if claim else None

    def fill(self, size: int, blind: bool = False) -> tuple[int, str | None]:
        """Put until there is no more room; blind: as if others took it after we looked."""
        if blind:
            vars(swarm.samehost.memory.ring)["free_bytes"] = lambda directory: 1 << 60
        count = 0
        while self.ring.put([bytes(size)]):
            count += 1
        return count, self.ring.reason

    def open(self, claim: Any) -> str:
        try:
            self.views.append(self.reader.open(Claim.from_wire(bytes.fromhex(claim))))
        except ShmError as error:
            return type(error).__name__
        return hashlib.sha256(self.views[-1]).hexdigest()

    def check(self, claim: Any) -> bool:
        return self.reader.check(Claim.from_wire(bytes.fromhex(claim)))

    def release(self, claim: Any) -> bool:
        return self.ring.release(Claim.from_wire(bytes.fromhex(claim)))

    def done(self, claim: Any) -> bool:
        return self.reader.done(Claim.from_wire(bytes.fromhex(claim)))

    def collect(self) -> int:
        return self.ring.collect()

    def outstanding(self) -> int:
        return self.ring.stats.outstanding

    def sweep(self, grace: float) -> int:
        return sweep(self.mesh, grace=grace, directory=self.directory)

    def close(self, abandon: bool = False) -> None:
        self.ring.close(abandon=abandon)

    def fork(self) -> tuple[int, bool]:
        """A child that outlives us, and whether its inherited ring refused its put."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, b"refused" if self.ring.put([b"x"]) is None else b"put")
            time.sleep(30)
            os._exit(0)
        return child, os.read(read, 10) == b"refused"

    def churn(self, size: int, turns: int) -> int:
        """Write the same slot over and over, each time full of one byte; print every claim."""
        for turn in range(1, turns + 1):
            claim = self.ring.put([bytes([turn % 251]) * size])
            assert claim is not None
            print(json.dumps(claim.to_wire().hex()), flush=True)
            time.sleep(turn % 8 * 1e-4)  # so that it is recycled before, during and after its use
            self.ring.release(claim)
        return turns


def main() -> None:
    peer = Peer(sys.argv[1], sys.argv[2])
    for line in sys.stdin:
        action, arguments = json.loads(line)
        print(json.dumps(getattr(peer, action)(**arguments)), flush=True)


if __name__ == "__main__":
    main()
