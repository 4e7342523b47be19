"""Work done by a process of another user, where the tests may start one."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable

import pytest

NOBODY = 65534
MAY = hasattr(os, "geteuid") and os.geteuid() == 0
needs_another_user = pytest.mark.skipif(not MAY, reason="only root can become another user")


def as_another_user(work: Callable[[], object], user: int = NOBODY) -> object:
    """What `work` returns, or the error that it raises, in a forked process of another user, whose
    one group has the same number.

    Forked, and not started anew: that user may not be able to read the interpreter's files."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([user])
            os.setgid(user)
            os.setuid(user)
            outcome = work()
        except BaseException as error:
            outcome = error
        try:
            os.write(writing, pickle.dumps(outcome))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        data = told.read()
    os.waitpid(child, 0)
    return pickle.loads(data)
