"""The settings of one program: flags > environment > TOML file > defaults, by argparse alone.

A node runs for months on a small device. The library behind `swarm` would cost each node 10 MB and
a third of its start, for a help text that is printed once.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRUE = ("1", "true", "t", "yes", "y", "on")
FALSE = ("0", "false", "f", "no", "n", "off")


@dataclass(frozen=True)
class Flag:
    """One setting. `name` is its key in the file and, after a prefix, in the environment.

    default: its type is the setting's; None stands for a text that must be given. least, most:
    bounds, inclusive. spelled: the flags, where they are not `--name`. A switch that is on by
    default, or `negatable`, has a `--no-name` too.
    """

    name: str
    default: str | int | float | bool | None
    help: str
    least: float | None = None
    most: float | None = None
    spelled: tuple[str, ...] = ()
    negatable: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        return self.spelled or ("--" + self.name.replace("_", "-"),)

    def convert(self, value: object) -> object:
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
            number = kind(value)
        except ValueError:
            raise ValueError(f"{value!r} is not {_KINDS[kind]}") from None
        if self.least is not None and not number >= self.least:
            raise ValueError(f"{number} is below {self.least}")
        if self.most is not None and not number <= self.most:
            raise ValueError(f"{number} is above {self.most}")
        return number


_KINDS = {int: "a whole number", float: "a number"}


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else ""
    if text not in TRUE + FALSE:
        raise ValueError(f"{value!r} is neither {TRUE[1]} nor {FALSE[1]}")
    return text in TRUE


def parse(
    program: str,
    usage: str,
    about: str,
    flags: Sequence[Flag],
    prefix: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """The settings by name. Ends the program: code 0 after `--help`, 2 for a wrong setting.

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
    config = Flag("config", "", "A TOML file with these settings as keys.")
    for flag in (*flags, config):
        _add(parser, flag, prefix)
    given: dict[str, Any] = vars(parser.parse_args(arguments))
    found = {
        flag.name: value
        for flag in (*flags, config)
        if (value := environment.get(prefix + flag.name.upper()))
    }
    path = str(given.pop("config", found.pop("config", "")))
    try:
        written = read_settings(path, {flag.name for flag in flags}) if path else {}
    except ValueError as error:
        parser.error(f"Invalid value for '--config': {error}")
    settings = written | found | given
    result: dict[str, Any] = {}
    for flag in flags:
        if flag.name not in settings:
            if flag.default is None:
                parser.error(f"Missing '{flag.flags[0]}' (or {prefix}{flag.name.upper()})")
            result[flag.name] = flag.default
            continue
        try:
            result[flag.name] = flag.convert(settings[flag.name])
        except ValueError as error:
            parser.error(f"Invalid value for '{flag.flags[0]}': {error}")
    return result


def _add(parser: argparse.ArgumentParser, flag: Flag, prefix: str) -> None:
    """Declare a flag. Its value stays a text: `convert` reads flags, environment and file alike."""
    about = [prefix + flag.name.upper()]
    if flag.default is None:
        about.append("required")
    elif isinstance(flag.default, bool):
        about += ["default on"] if flag.default else []
    elif flag.default != "":
        about.append(f"default {flag.default}")
    bounds = [f"at least {flag.least:g}"] if flag.least is not None else []
    bounds += [f"at most {flag.most:g}"] if flag.most is not None else []
    text = f"{flag.help} [{'; '.join((*about, *bounds))}]".replace("%", "%%")
    common: dict[str, Any] = {"dest": flag.name, "default": argparse.SUPPRESS, "help": text}
    if isinstance(flag.default, bool):
        both = flag.default or flag.negatable
        common["action"] = argparse.BooleanOptionalAction if both else "store_true"
    else:
        common["metavar"] = {int: "N", float: "X"}.get(type(flag.default), "TEXT")
    parser.add_argument(*flag.flags, **common)


def read_settings(path: str, known: Set[str]) -> dict[str, Any]:
    """The settings in a TOML file; `-` and `_` are the same in its keys.

    Raises `ValueError` for a file that is not TOML, and for settings that are not `known`."""
    import tomllib

    try:
        doc = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    settings = {key.replace("-", "_"): value for key, value in doc.items()}
    if unknown := sorted(set(settings) - known):
        raise ValueError(f"{path}: unknown settings {', '.join(unknown)}")
    return settings
