"""How a function becomes a command of `swarm`.

A parameter that is a dataclass stands for one option a field, so that options which belong together
are declared once, and reach the work as one value. A parameter that is a `Given` stands for the
options that features add to this command, and has the others too. The function's result, or that of
its coroutine, is the exit code; an error becomes a line (`nodes.console.guarded`).

Each option is a flag, an environment variable `SWARM_<COMMAND>_<OPTION>`, and a key of the TOML
file of `--config`; a flag wins over the variable, that over the file. Options that are seldom set
are declared hidden: `--help-all` shows them too.

A parameter that names something of the mesh says so (`Named`): a text that cannot be a name is
refused before the command does anything. A wrong command line is one line, and exit code 2.

A command is a function in a file of its own, which is imported when the command is called
(`group`): the file imports its work at its top, and `swarm --help` answers at once.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from nodes.extras import lacking
from nodes.feature import CommandGroup, Commands, Given, MissingExtra, imported
from nodes.features import features
from nodes.settings import read_settings
from shards.errors import ShardsError
from swarm.errors import InvalidArgument, SwarmError
from swarm.subjects import token

Ran = Coroutine[Any, Any, int | None]  # its result is the exit code; None is 0
Work = Callable[..., int | Ran]
_UsageError: Any = typer.BadParameter.__base__


@dataclass(frozen=True)
class Named:
    """Says in an annotation that a parameter is a name, or several, and of what. It is a token of a
    subject; where it is a `version` too, NAME or NAME@VERSION. also: texts that stand for none."""

    what: str
    version: bool = False
    also: tuple[str, ...] = ()

    def check(self, given: str | list[str] | None) -> None:
        """Raises `InvalidArgument` for what can be no name."""
        for text in given if isinstance(given, list) else [given]:
            if text is None or text in self.also:
                continue
            name, at, version = text.partition("@") if self.version else (text, "", "")
            token(name, self.what)
            if at:
                token(version, f"version of {self.what}")


def group(commands: Commands, words: str = "") -> type[TyperGroup]:
    """The class of a group with these commands, and with those that features add, in this order.
    words: that call the group, without `swarm`."""
    found = _Loaded(_with_features(commands, words), words)

    class OfCommands(TyperGroup):
        def __init__(self, **more: Any) -> None:
            super().__init__(**more)
            self.commands = found  # type: ignore[assignment]  # nothing is added to it

        def list_commands(self, ctx: Any) -> list[str]:
            return list(found)

        def get_command(self, ctx: Any, name: str) -> Any:
            return found.unloaded(name) if name in found.declared else None

        def main(self, *given: Any, **more: Any) -> Any:
            """As of its base; a wrong command line is one line on standard error."""
            try:
                code = super().main(*given, **more | {"standalone_mode": False})
            except _UsageError as error:
                words = more.get("args") or (given[0] if given else None) or sys.argv[1:]
                code = _wrong_line(error, "--json" in words)
            sys.exit(code)

    return OfCommands


def _with_features(core: Commands, words: str) -> Commands:
    """The commands of a group: the core's and then those that features add, by their headings."""
    panels = {panel: dict(commands) for panel, commands in core.items()}
    for feature in features():
        for panel, commands in feature.commands.items():
            for path, command in commands.items():
                parent, _, name = path.rpartition(" ")
                if parent == words:
                    panels.setdefault(panel, {})[name] = command
    return panels


class _Loaded(Mapping[str, Any]):
    """The commands of a group by name. Each is imported and built when it is asked for."""

    def __init__(self, panels: Commands, words: str) -> None:
        self.declared = {
            name: (panel, command)
            for panel, commands in panels.items()
            for name, command in commands.items()
        }
        self._words = words

    def __getitem__(self, name: str) -> Any:
        panel, command = self.declared[name]
        words = f"{self._words} {name}".strip()
        if isinstance(command, CommandGroup):
            made = typer.Typer(
                cls=group(command.commands, words), help=command.help, no_args_is_help=True
            )
        elif isinstance(command, typer.Typer):
            made = command
        else:
            made = typer.Typer(add_completion=False)
            try:
                work = as_command(imported(command), words)
            except ModuleNotFoundError as error:
                made.command(name, **_ANY_LINE)(_needing(error))
            else:
                made.command(name, rich_help_panel=panel)(work)
            return typer.main.get_command(made)
        built = typer.main.get_group(made)
        built.name, built.rich_help_panel = name, panel
        return built

    def __iter__(self) -> Iterator[str]:
        return iter(self.declared)

    def __len__(self) -> int:
        return len(self.declared)

    def unloaded(self, name: str) -> TyperCommand:
        """As help and completion show it; it is loaded when it is called."""
        panel, command = self.declared[name]
        if isinstance(command, CommandGroup):
            about = command.help
        elif isinstance(command, typer.Typer):
            about = str(command.info.help)
        else:
            about = _line_of(command)
        return _Unloaded(name, lambda: self[name], help=about, rich_help_panel=panel)


class _Unloaded(TyperCommand):
    """A command that is not imported yet."""

    def __init__(self, name: str, load: Callable[[], Any], **more: Any) -> None:
        super().__init__(name, **more)
        self._load = load

    def make_context(self, *given: Any, **more: Any) -> Any:
        """As of its base, of the command itself."""
        return self._load().make_context(*given, **more)


def _line_of(command: str) -> str:
    """The first paragraph of a command's docstring, read from its file: an import of the file would
    import the libraries of the work."""
    module, _, name = command.partition(":")
    found = find_spec(module)
    source = Path((found and found.origin) or module).read_text(encoding="utf-8")
    return cleandoc(re.findall(_FIRST_PARAGRAPH.format(name), source, re.M | re.S)[0])


_FIRST_PARAGRAPH = r'^(?:async )?def {}\(.*?:\n    """(.*?)(?:\n\n|""")'
_ANY_LINE: Any = {
    "add_help_option": False,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
}


def _needing(error: ModuleNotFoundError) -> Callable[[typer.Context], None]:
    """In place of a command whose file cannot be imported: says which extra brings what it needs.
    It raises the error itself where none does."""

    def say(context: typer.Context) -> None:
        from nodes.console import not_installed

        raise typer.Exit(not_installed(error, "--json" in context.args))

    return say


def options_of(called: str) -> list[type]:
    """The dataclasses of options that features add to a command. called: words after `swarm`."""
    return [imported(path) for each in features() for path in each.options.get(called, ())]


def as_command(work: Work, called: str = "") -> Callable[..., None]:
    """The command of a function, with the options that all commands have. called: the words after
    `swarm`, by which features and `nodes.extras.TOGETHER` know it."""
    signature = inspect.signature(work, eval_str=True)
    names: dict[str, tuple[Named, Any]] = {}

    def checked(given: Mapping[str, Any]) -> None:
        for name, (named, default) in names.items():
            if given[name] != default:
                named.check(given[name])

    groups: dict[str, list[type]] = {}
    for name, parameter in signature.parameters.items():
        if parameter.annotation is Given:
            groups[name] = options_of(called)
        elif isinstance(parameter.annotation, type) and is_dataclass(parameter.annotation):
            groups[name] = [parameter.annotation]

    @functools.wraps(work)
    def run(config: str, help_all: bool, **given: Any) -> None:
        as_json = bool(given.get("json"))
        try:
            checked(given)
            options = [f"{'--' if value else 'no --'}{each}" for each, value in given.items()]
            if lack := lacking([called, *(f"{called} {each}" for each in options)]):
                raise lack
        except MissingExtra as error:
            from nodes.console import report

            raise typer.Exit(report(error, as_json)) from None
        except InvalidArgument as error:
            from nodes.console import report

            report(error, as_json)
            raise typer.Exit(2) from None
        values = Given()
        for kind in (kind for kinds in groups.values() for kind in kinds):
            values[kind] = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
        for name, parameter in signature.parameters.items():
            if name in groups:
                whole = parameter.annotation is Given
                given[name] = values if whole else values[parameter.annotation]
        try:
            done = work(**given)
        except ModuleNotFoundError as error:  # of the import of the work, or of work that is done
            from nodes.console import not_installed

            raise typer.Exit(not_installed(error, as_json)) from None
        except (SwarmError, ShardsError, OSError) as error:  # of work that is no coroutine
            from nodes.console import report

            raise typer.Exit(report(error, as_json)) from None
        if isinstance(done, int):
            raise typer.Exit(done)
        from nodes.console import guarded

        raise typer.Exit(guarded(lambda: done, as_json))

    parameters = [
        shown
        for name, parameter in signature.parameters.items()
        for shown in (
            [option for kind in groups[name] for option in _options(kind)]
            if name in groups
            else [_parameter(name, parameter.annotation, parameter.default)]
        )
    ]
    parameters += _options(OfAll)
    names |= {
        each.name: (found, each.default)
        for each in parameters
        for found in each.annotation.__metadata__
        if isinstance(found, Named)
    }
    del run.__wrapped__  # otherwise help would show the function's signature
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _wrong_line(error: Any, as_json: bool) -> int:
    """Print what is wrong with a command line; returns the exit code."""
    from nodes.console import err, print_json

    text = " ".join(error.format_message().split())
    if text:  # else the help was printed, which a group alone asks for
        where = f" ({error.ctx.command_path} --help)" if error.ctx is not None else ""
        if as_json:
            print_json({"error": f"{text}{where}", "status": "INVALID_ARGUMENT"})
        err.print(f"swarm: {text}{where}", markup=False, highlight=False, soft_wrap=True)
    return int(error.exit_code)


def option(default: Any, help: str, *names: str, **more: Any) -> Any:
    """An option, as the default of a parameter or of a dataclass's field. default: `...` where it
    must be given. names: in place of `--name`. more: see `typer.Option`."""
    return _declared(default, typer.Option(..., *names, help=help, **more))


def seldom(default: Any, help: str, *names: str, **more: Any) -> Any:
    """An `option` that only --help-all shows."""
    return option(default, help, *names, hidden=True, **more)


def argument(default: Any, help: str, **more: Any) -> Any:
    """An argument that may be left out."""
    return _declared(default, typer.Argument(help=help, **more))


def flags_of(options: Any, kind: type) -> list[str]:
    """What another command is to be told, so that it has the same: the options of this dataclass
    that are not as they are by default."""
    flags = []
    for each in fields(kind):
        value, name = getattr(options, each.name), each.name.replace("_", "-")
        if value == each.default:
            continue
        if isinstance(value, bool):
            flags.append(f"--{name}" if value else f"--no-{name}")
        else:
            flags.append(f"--{name}={value}")
    return flags


def _declared(default: Any, shown: Any) -> Any:
    return field(default=MISSING if default is ... else default, metadata={"shown": shown})


def _options(group: Any) -> list[inspect.Parameter]:
    declared = get_type_hints(group, include_extras=True)
    return [_parameter(each.name, declared[each.name], each) for each in fields(group)]


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """The parameter of a declared option or argument, of an annotation or a field."""
    if isinstance(default, Field):
        if "shown" in default.metadata:
            annotation = Annotated[annotation, default.metadata["shown"]]
        default = inspect.Parameter.empty if default.default is MISSING else default.default
    for shown in annotation.__metadata__:
        if isinstance(shown, Named):
            continue
        shown.show_envvar = bool(shown.envvar)  # each option has one by the rule above
        if default is False and not shown.param_decls:
            shown.param_decls = ("--" + name.replace("_", "-"),)  # no `--no-name`
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _take_settings(context: typer.Context, path: str) -> str:
    """Take a TOML file's keys as defaults. Raises `typer.BadParameter` for a bad file."""
    if path:
        known = {parameter.name for parameter in context.command.params if parameter.name}
        try:
            settings = read_settings(path, known)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        context.default_map = {**(context.default_map or {}), **settings}
    return path


def _show_all(context: typer.Context, asked: bool) -> None:
    if asked:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit


@dataclass(frozen=True)
class OfAll:
    """The options that each command has."""

    config: str = option(
        "",
        "A TOML file with options of this command as keys; flags and the environment win.",
        callback=_take_settings,
        is_eager=True,
    )
    help_all: bool = seldom(
        False,
        "Show all options, those that are seldom set too.",
        callback=_show_all,
        is_eager=True,
    )
