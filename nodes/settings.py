"""The settings of a program, each declared once, as a field of a frozen dataclass.

    rate: float = setting("edge", 30.0, "Captures a second.", least=0.01)

Flags, environment variables, keys of a TOML file, their checks, the help and the table of the page
follow from the field. Flags > environment > file > defaults, by argparse alone: a node runs for
months on a small device, and the libraries that do this cost it 10 to 30 MB.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from swarm.errors import InvalidArgument

TRUE = ("1", "true", "t", "yes", "y", "on")
FALSE = ("0", "false", "f", "no", "n", "off")
SCALES = {"ms": 1e-3, "MB": 1_000_000}  # of settings whose field has seconds, or bytes
TUNING = "tuning"  # the group whose flags the help leaves out
_KINDS = {int: "a whole number", float: "a number"}
_UNITS = ({"ms": 1e-3, "s": 1.0}, {"KB": 1e3, "MB": 1e6, "GB": 1e9})  # what a number may carry

T = TypeVar("T")


class WrongSetting(InvalidArgument):
    """A setting that does not do on this machine, or in this mesh, however often it is tried."""


def writable(folder: str, flag: str) -> None:
    """Make the folder that a setting names, "" for none, and try to write a file there. Raises
    `WrongSetting`."""
    try:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise WrongSetting(f"{flag} {folder}: {error.strerror}: no file can be written") from None


@dataclass(frozen=True)
class Setting:
    """default: in the setting's unit; its type is the setting's; None stands for a text that must
    be given. least, most: bounds, inclusive. one_of: the texts that it may be. spelled: the flags,
    where they are not `--name`. A switch that is on by default, or `negatable`, has a `--no-name`
    too. many: the flag may be given several times, as commas between its texts. name: its key in
    the file and, after a prefix, in the environment.
    """

    group: str
    default: str | int | float | bool | None
    help: str
    unit: str = ""
    least: float | None = None
    most: float | None = None
    one_of: tuple[str, ...] = ()
    spelled: tuple[str, ...] = ()
    negatable: bool = False
    many: bool = False
    name: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        return self.spelled or ("--" + self.name.replace("_", "-"),)

    @property
    def is_tuning(self) -> bool:
        return self.group == TUNING

    @property
    def variable(self) -> str:
        return "SWARM_" + self.name.upper()

    @property
    def values(self) -> str:
        """The default with its unit, and the bounds, as people read them; "" without a default."""
        if self.default in (None, "") or self.default is False:
            return ""
        shown = ["on" if self.default is True else f"{self.default} {self.unit}".strip()]
        shown += [f"at least {self.least:g}"] if self.least is not None else []
        shown += [f"at most {self.most:g}"] if self.most is not None else []
        return "; ".join(shown)

    def convert(self, value: object) -> Any:
        """The setting's value, of a text or of a TOML file's value. Raises `ValueError`."""
        if isinstance(self.default, bool):
            return _switch(value)
        if self.default is None or isinstance(self.default, str):
            if not isinstance(value, str):
                raise ValueError(f"{value!r} is not a text")
            return value
        kind = type(self.default)
        if isinstance(value, bool) or not isinstance(value, (str, int, kind)):
            raise ValueError(f"{value!r} is not {_KINDS[kind]}")
        try:
            number = kind(_in_unit(value, self.unit) if isinstance(value, str) else value)
        except ValueError:
            raise ValueError(f"{value!r} is not {_KINDS[kind]}") from None
        self._check_bounds(number)
        return self.scaled(number)

    def scaled(self, number: Any) -> Any:
        """A value in the setting's unit as its field has it."""
        scale = SCALES.get(self.unit)
        return number if scale is None else type(number)(number * scale)

    def check(self, value: Any) -> None:
        """Raises `ValueError` for a field's value that the setting may not have."""
        if self.one_of and value not in self.one_of:
            *others, last = self.one_of
            raise ValueError(f"{value!r}: it is {', '.join(others)} or {last}")
        if isinstance(value, (int, float)):
            self._check_bounds(value / SCALES.get(self.unit, 1))

    def _check_bounds(self, number: float) -> None:
        if self.least is not None and not number >= self.least:
            raise ValueError(f"{number} is below {self.least:g}")
        if self.most is not None and not number <= self.most:
            raise ValueError(f"{number} is above {self.most:g}")


def _in_unit(text: str, unit: str) -> str | float:
    """A number that carries a unit of its own, such as 50ms or 1.5 GB, in the setting's unit."""
    for scales in _UNITS:
        for suffix in sorted(scales, key=len, reverse=True):
            if unit in scales and text.endswith(suffix):
                return float(text.removesuffix(suffix)) * scales[suffix] / scales[unit]
    return text


def setting(group: str, default: str | int | float | bool | None, help: str, **more: Any) -> Any:
    """A field that is a setting; the arguments are those of `Setting`."""
    declared = Setting(group, default, help, **more)
    given = {} if default is None else {"default": declared.scaled(default)}
    return field(metadata={"setting": declared}, **given)


tuning = partial(setting, TUNING)


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else ""
    if text not in TRUE + FALSE:
        raise ValueError(f"{value!r} is neither {TRUE[1]} nor {FALSE[1]}")
    return text in TRUE


def _own_settings(kind: type) -> Iterator[tuple[str, Setting]]:
    """Fields of a dataclass that are settings, without those of its parts."""
    for each in fields(kind):
        if declared := each.metadata.get("setting"):
            yield each.name, replace(declared, name=declared.name or each.name)


def _parts(kind: type) -> Iterator[tuple[str, type]]:
    """Fields of a dataclass that are dataclasses, with settings of their own."""
    for each in fields(kind):
        if is_dataclass(each.default_factory) and isinstance(each.default_factory, type):
            yield each.name, each.default_factory


def settings_of(kind: type) -> list[Setting]:
    """All settings of a dataclass and of its parts."""
    own = [declared for _, declared in _own_settings(kind)]
    return own + [each for _, inner in _parts(kind) for each in settings_of(inner)]


def check(settings: object) -> None:
    """Raises `InvalidArgument` for a value that its setting may not have, naming the flag."""
    for name, declared in _own_settings(type(settings)):
        try:
            declared.check(getattr(settings, name))
        except ValueError as error:
            raise InvalidArgument(f"{declared.flags[0]} {error}") from None


def built(kind: type[T], values: Mapping[str, Any], **more: Any) -> T:
    """A dataclass and its parts from values by the settings' names. more: fields that are none."""
    own = {name: values[declared.name] for name, declared in _own_settings(kind)}
    parts: dict[str, Any] = {name: built(each, values) for name, each in _parts(kind)}
    return kind(**own, **parts, **more)


def parse(
    program: str,
    usage: str,
    about: str,
    settings: Sequence[Setting],
    arguments: Sequence[str],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """The values by name. Ends the program: code 0 after `--help`, 2 for a wrong setting.

    `--config FILE` names the TOML file; `-` and `_` are the same in its keys. An empty
    environment variable counts as none.
    """
    parser = argparse.ArgumentParser(
        prog=program,
        usage=usage,
        description=about,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    config = Setting("", "", "A TOML file with these settings as keys.", name="config")
    _add(parser, config)
    titles = dict.fromkeys(each.group for each in settings)
    groups = {title: parser.add_argument_group(title) for title in titles}
    for each in settings:
        _add(groups[each.group], each)
    given: dict[str, Any] = vars(parser.parse_args(arguments))
    known = (*settings, config)
    found = {each.name: text for each in known if (text := environment.get(each.variable))}
    path = str(given.pop("config", found.pop("config", "")))
    try:
        written = read_settings(path, {each.name for each in settings}) if path else {}
    except ValueError as error:
        parser.error(f"Invalid value for '--config': {error}")
    values = written | found | given
    result: dict[str, Any] = {}
    for each in settings:
        if each.name not in values and each.default is None:
            parser.error(f"Missing '{each.flags[0]}' (or {each.variable})")
        try:
            result[each.name] = each.convert(values.get(each.name, each.default))
        except ValueError as error:
            parser.error(f"Invalid value for '{each.flags[0]}': {error}")
    return result


def _add(parser: argparse._ActionsContainer, declared: Setting) -> None:
    """Declare a flag. Its value stays a text: `convert` reads flags, environment and file alike."""
    default = declared.default
    about = declared.variable + ("; required" if default is None else "")
    about += f"; default {declared.values}" if declared.values else ""
    text = f"{declared.help} [{about}]".replace("%", "%%")
    common: dict[str, Any] = {"dest": declared.name, "default": argparse.SUPPRESS}
    common["help"] = argparse.SUPPRESS if declared.is_tuning else text
    if isinstance(default, bool):
        both = default or declared.negatable
        common["action"] = argparse.BooleanOptionalAction if both else "store_true"
    else:
        common["metavar"] = {int: "N", float: "X"}.get(type(default), "TEXT")
        if declared.many:
            common["action"] = _Joined
    parser.add_argument(*declared.flags, **common)


class _Joined(argparse.Action):
    """A flag that is given several times, as one text with commas."""

    def __call__(self, parser: Any, given: Any, values: Any, flag: Any = None) -> None:
        before = getattr(given, self.dest, None)
        setattr(given, self.dest, values if before is None else f"{before},{values}")


def table(settings: Sequence[Setting]) -> str:
    """The settings as a table of a page in Markdown, by their groups."""
    lines = ["| setting | default | effect |", "|---|---|---|"]
    for group in dict.fromkeys(each.group for each in settings):
        lines.append(f"| **{group}** | | |")
        for each in settings:
            if each.group == group:
                names = ", ".join(f"`{flag}`" for flag in each.flags)
                effect = each.help.replace("|", "\\|")
                lines.append(f"| {names} | {each.values} | {effect} |")
    return "\n".join(lines) + "\n"


def read_settings(path: str, known: Set[str]) -> dict[str, Any]:
    """The settings in a TOML file; `-` and `_` are the same in its keys.

    Raises `ValueError` for a file that is not TOML, and for settings that are not `known`."""
    import tomllib

    try:
        doc = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    settings = {key.replace("-", "_"): value for key, value in doc.items()}
    if unknown := sorted(set(settings) - known):
        raise ValueError(f"{path}: unknown settings {', '.join(unknown)}")
    return settings
