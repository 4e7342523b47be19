"""Starting and stopping a Ray cluster of our own: loopback, no dashboard, a small object store."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Any

from bench.rivals.processes import descendants

OBJECT_STORE_BYTES = 256 * 1024 * 1024
SEMAPHORE_FOLDER = Path("/dev/shm")


class RayCluster:
    """A Ray cluster of one node that belongs to this client."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.api: Any = None

    def start(self, slots: int, **environment: str) -> Any:
        """``ray`` after ``init``, with room for ``slots`` actors.

        Requests between its processes stay authenticated, with a token of this cluster alone that
        is never written to the user's home folder.
        """
        os.environ.update(
            RAY_USAGE_STATS_ENABLED="0",
            RAY_ENABLE_UV_RUN_RUNTIME_ENV="0",  # workers are of this interpreter, not of `uv run`
            RAY_AUTH_MODE="token",
            RAY_AUTH_TOKEN=secrets.token_hex(32),
            **environment,
        )
        import ray

        self.api = ray
        ray.init(
            num_cpus=slots,
            num_gpus=0,
            include_dashboard=False,
            configure_logging=False,
            log_to_driver=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(self.scratch),
        )
        return ray

    def stop(self) -> None:
        """End every process, and remove the named semaphores that they leave behind."""
        if self.api is None:
            return
        owners = [os.getpid(), *(process.pid for process in descendants(os.getpid()))]
        self.api.shutdown()
        self.api = None
        for owner in owners:
            for kind in ("hdr", "obj"):
                for file in SEMAPHORE_FOLDER.glob(f"sem.{kind}{owner}-*"):
                    with contextlib.suppress(OSError):
                        file.unlink()
