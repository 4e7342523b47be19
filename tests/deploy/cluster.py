"""A chart that is played, and what happens to its pods."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from asking import Load
from kubelet import Kubelet
from playing import Machine
from support.waiting import eventually_now

READY_WITHIN = 90  # seconds
SEEN_AFTER = 2.0  # seconds, until who asks a service knows that one of its pods ends
HTTP = 8000


class Cluster:
    """kubelet: of the chart as it is. Its pods start with `up`."""

    def __init__(self, playground: Machine, kubelet: Kubelet) -> None:
        self.playground = playground
        self.kubelet = kubelet
        self._of = dict.fromkeys(kubelet.pods, kubelet)

    def up(self) -> None:
        for pod in self.kubelet.pods.values():
            self.playground.start(pod.service)

    def down(self) -> None:
        self.playground.end(*self.kubelet.pods)

    def kill(self, name: str) -> None:
        self.playground.end(name, number=signal.SIGKILL)

    def start(self, name: str) -> None:
        self.playground.start(self.kubelet.pods[name].service)

    def says_yes(self, name: str, probe: str = "readiness") -> bool:
        return self._of[name].says_yes(self.playground, name, probe)

    def ready(self, *names: str) -> None:
        """Wait for pods, or for all. Fails where one ends."""
        for name in names or self.kubelet.pods:
            played = self.playground.running[name]
            eventually_now(
                lambda name=name, played=played: (
                    played.process.poll() is not None or self.says_yes(name)
                ),
                f"{name} is ready",
                READY_WITHIN,
            )
            assert played.process.poll() is None, f"{name}:\n{played.log[-3000:]}"

    def upgrade(self, new: Kubelet, load: Load) -> None:
        """Another template of the Deployments: a pod more of each at first, and one goes when that
        is ready. Of a service's pods, who asks knows those that are ready."""
        old = [name for name in self.kubelet.pods if name not in new.pods]
        fresh = [name for name in new.pods if name not in self.kubelet.pods]
        self._of |= dict.fromkeys(fresh, new)
        serving = set(old)
        turns = max(int(name.rpartition("-")[2]) for name in fresh) + 1
        for turn in range(turns):
            now = [name for name in fresh if name.endswith(f"-{turn}")]
            for name in now:
                self.playground.start(new.pods[name].service)
            self.ready(*now)
            serving |= set(now)
            self._goes_to(load, serving)
            time.sleep(SEEN_AFTER)
            gone = [name for name in old if name.endswith(f"-{turn}")]
            serving -= set(gone)
            for name in gone:
                self.playground.tell(self.playground.running[name])
            time.sleep(SEEN_AFTER)
            self._goes_to(load, serving)
            for name in gone:
                self.playground.running.pop(name).ended()
        self.kubelet = new

    def _goes_to(self, load: Load, names: Sequence[str] | set[str]) -> None:
        gateways = sorted(name for name in names if "-gateway-" in name)
        load.goes_to(*(f"http://{self.playground.address(name)}:{HTTP}" for name in gateways))

    def asks(self, load: Load) -> None:
        """All gateways are known to who asks."""
        self._goes_to(load, self.kubelet.pods.keys())
