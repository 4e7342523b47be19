"""Programs of Debian that tests need: a machine without them skips, and CI skips nothing."""

from __future__ import annotations

import os
import shutil

import pytest


def needed(program: str, package: str) -> str:
    """The path of a program. Where it is missing the test is skipped, and in CI it fails."""
    path = shutil.which(program)
    if path is None:
        remedy = f"no {program}: apt-get install --yes {package}"
        if os.environ.get("CI"):
            pytest.fail(f"{remedy} (CI skips nothing)")
        pytest.skip(remedy)
    return path
