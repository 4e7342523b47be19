"""Hides libraries from this process and its children: those of the extras that are not installed.

A folder with this file in PYTHONPATH stands for an installation; `HIDDEN` names what it lacks.
"""

import os
import sys


class Hiding:
    """A finder that finds no hidden library, as where it is not installed."""

    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            return None
        return self._finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self._finder, name)


HIDDEN = frozenset(os.environ.get("HIDDEN", "").split(","))
sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
