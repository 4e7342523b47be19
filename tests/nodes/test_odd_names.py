"""A name that cannot be one is one line and code 2 in every command, before it does anything."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from support.commands import product_commands

from nodes.cli.main import app

NOBODY = "nats://127.0.0.1:1"
TOKEN = "[A-Za-z0-9_-]{1,128}"
# Parameters of commands that name something of the mesh, by the word that they all use for it.
NAMES = {
    *("model", "version", "name", "cascade", "ensemble", "mesh", "domain", "jetstream_domain"),
    *("node", "agent", "site", "id", "user", "client", "device"),
}
# They are no names: a folder, an ONNX file or a model; arguments of a program; a file's version by
# a rule of its own; a text for people.
NOT_NAMES = {
    ("up", "model"),
    ("model plan", "model"),
    ("deploy k8s", "model"),
    ("fleet updater", "node"),
    ("release push", "version"),
    ("release sign", "version"),
    ("keys trust", "name"),
}
MAY_BE_LEFT_OUT = {
    ("infer", "model"),
    ("profile", "model"),
    ("replay", "id"),
    ("model pin", "version"),
    ("site status", "site"),
}
COMMAND = typer.main.get_command(app)


@dataclass(frozen=True)
class Case:
    """A parameter of a command that is a name, and what the command must be given beside it."""

    words: str
    name: str
    before: tuple[str, ...]
    flag: str = ""

    def line(self, name: str) -> list[str]:
        begin = [*self.words.split(), *self.before]
        if self.flag:
            return [*begin, f"{self.flag}={name}"]
        return [*begin, "--", name]


def cases() -> Iterator[Case]:
    for words, command in product_commands().items():
        known = {each.name for each in command.params}
        beside = [("nats", "--nats", NOBODY), ("root", "--root", "/nonexistent/root")]
        always = [word for name, *flag in beside if name in known for word in flag]
        for tested in command.params:
            if tested.name not in NAMES or (words, tested.name) in NOT_NAMES:
                continue
            options = list(always)
            arguments = []
            for each in command.params:
                if each is tested or not each.required:
                    continue
                if each.param_type_name == "argument":
                    arguments.append("x")
                else:
                    options += [each.opts[-1], "1"]
            if tested.param_type_name == "option":
                yield Case(words, tested.name, (*options, *arguments), tested.opts[-1])
            else:
                places = [p for p in command.params if p.param_type_name == "argument"]
                ahead = ["x"] * places.index(tested)
                yield Case(words, tested.name, (*options, *ahead))


CASES = list(cases())


def told(arguments: list[str]) -> tuple[int, str, str]:
    """The code of `swarm …`, and what it prints."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            COMMAND.main(arguments, prog_name="swarm")
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, out.getvalue(), err.getvalue()


def test_every_command_that_names_something_is_looked_at() -> None:
    words = {case.words for case in CASES}
    assert len(words) > 20
    assert {"infer", "drain", "auth add", "model pin"} <= words
    assert len({(case.words, case.name) for case in CASES}) == len(CASES) > 40


@pytest.fixture(scope="module", autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which a command that would go on may write."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CONFIG_HOME", str(folder))
        for name in [name for name in os.environ if name.startswith("SWARM_")]:
            patch.delenv(name)
        yield folder
    assert list(folder.iterdir()) == [], "no command has begun anything"


def check(case: Case, name: str) -> None:
    code, out, err = told(case.line(name))
    what = f"{case.words} {case.name} {name!r}: {out}{err}"
    assert code == 2, what
    assert err.count("\n") == 1, what
    assert err.startswith("swarm: "), what
    assert not any(c != "\n" and not c.isprintable() for c in err), what


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.words} {case.name}")
def test_an_odd_name_is_one_line_and_code_2_before_a_command_does_anything(case: Case) -> None:
    for name in ("a b", "a.b", ">", "a\nb", "é", "\x1b[31m", "x" * 129, "a\n"):
        check(case, name)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example(CASES[0], "-.x")
@given(st.sampled_from(CASES), st.text(st.characters(exclude_characters="\0"), min_size=1))
def test_whatever_is_no_name_is_refused_by_every_command(case: Case, name: str) -> None:
    assume(re.fullmatch(rf"{TOKEN}(@{TOKEN})?", name) is None)
    assume(name != "*")  # any model, of a gateway's user
    check(case, name)


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if not case.flag and (case.words, case.name) not in MAY_BE_LEFT_OUT],
    ids=lambda case: f"{case.words} {case.name}",
)
def test_no_name_at_all_is_refused_where_one_must_be_given(case: Case) -> None:
    check(case, "")
    code, _, err = told([*case.words.split(), *case.before, "-x.y"])
    assert code == 2
    assert err.count("\n") == 1
