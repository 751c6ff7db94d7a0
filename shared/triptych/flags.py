"""A command's flags, made from the fields of its settings class: help, parsing, completion."""

import argparse
import difflib
import inspect
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, CliPositionalArg

#: Column at which descriptions begin.
_TEXT_COLUMN = 28
#: Of paragraphs, in columns.
_MAX_WIDTH = 100
#: What gives an optional value none.
_NONE = "none"
_DEFAULT = "; default: "
_POSITIONAL = get_args(CliPositionalArg[str])[1]
_NUMBERS = (int, float)


@dataclass(frozen=True, slots=True)
class Flag:
    """A field as a flag, or as an argument without a name where ``is_positional``.

    ``name``: as it is written, before its value. ``group``: the heading in the help. ``text``:
    description, choices and default. ``words``: what its value may be, or what it often is.
    ``takes_path``: its value may be a file.
    """

    field: str
    name: str
    group: str
    text: str
    metavar: str
    words: tuple[str, ...]
    takes_path: bool
    is_switch: bool
    is_optional: bool
    is_positional: bool
    is_required: bool

    @property
    def names(self) -> tuple[str, ...]:
        """As they may be written; a switch has two."""
        return (self.name, f"--no-{self.name[2:]}") if self.is_switch else (self.name,)


def flags_of(settings: type[BaseSettings]) -> list[Flag]:
    """The flags of a settings class, group by group, in the order of its bases."""
    kinds = [*settings.__mro__[1:], settings]
    groups = [_group(kind) for kind in kinds]

    def place(flag: Flag) -> tuple[int, int]:
        return groups.index(flag.group), kinds.index(_declaring(settings, flag.field))

    listed = [_flag(settings, name, field) for name, field in settings.model_fields.items()]
    return sorted(listed, key=place)


def values_of(settings: type[BaseSettings], args: list[str]) -> dict[str, Any]:
    """What ``args`` say, by field; what they do not say is absent.

    Raises:
        SystemExit: after ``--help``, or (2) after one line about what cannot be read.
    """
    flags = flags_of(settings)
    parser = parser_of(settings, flags)
    parsed, unknown = parser.parse_known_args(args)
    if unknown:
        parser.error(_no_such(unknown[0], flags))
    values = vars(parsed)
    for flag in flags:
        if flag.is_optional and values.get(flag.field) == _NONE:
            values[flag.field] = None
    return values


def flag_name(settings: type[BaseSettings], field: str) -> str:
    """How the flag of ``field`` is written."""
    info = settings.model_fields.get(field)
    extra = info.json_schema_extra if info is not None else None
    named = extra.get("flag") if isinstance(extra, dict) else None
    return str(named or "--" + field.replace("_", "-"))


def parser_of(settings: type[BaseSettings], flags: list[Flag]) -> argparse.ArgumentParser:
    """The parser of a settings class; it takes texts, which the class validates."""
    command = str(settings.model_config.get("cli_prog_name"))
    positional = [_shown(flag) for flag in flags if flag.is_positional]
    parser = _Parser(
        prog=command,
        usage=" ".join([command, *positional, "[options]"]),
        description=inspect.cleandoc(settings.__doc__ or ""),
        epilog=_epilog(settings, flags),
        formatter_class=_Formatter,
        add_help=False,
        allow_abbrev=False,
    )
    groups: dict[str, Any] = {}
    for flag in flags:
        if flag.group not in groups:
            groups[flag.group] = parser.add_argument_group(flag.group)
        _add(groups[flag.group], flag)
    group = parser.add_argument_group("help")
    group.add_argument("-h", "--help", action="help", help="show this help")
    return parser


class _Parser(argparse.ArgumentParser):
    """An error is one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} ({self.prog} --help)\n")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """A flag on one line where the terminal is wide enough."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_TEXT_COLUMN)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return "--[no-]" + action.option_strings[0].removeprefix("--")
        return super()._format_action_invocation(action)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Paragraphs filled, but for those with indented lines."""
        del indent
        return "\n\n".join(
            part if "\n  " in part else textwrap.fill(part, min(width, _MAX_WIDTH))
            for part in text.split("\n\n")
        )


def _group(kind: type) -> str:
    return str(vars(kind).get("flag_group", "options"))


def _flag(settings: type[BaseSettings], name: str, field: FieldInfo) -> Flag:
    kinds = _kinds(field.annotation)
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    choices = [str(word) for kind in kinds for word in get_args(kind)]
    metavar = str(extra.get("metavar") or _metavar(name, kinds))
    return Flag(
        field=name,
        name=flag_name(settings, name),
        group=_group(_declaring(settings, name)),
        text=_text(field, choices),
        metavar=metavar,
        words=tuple(choices or map(str, field.examples or ())),
        takes_path=Path in kinds or metavar in {"FILE", "MODEL"},
        is_switch=bool in kinds,
        is_optional=type(None) in kinds,
        is_positional=_POSITIONAL in field.metadata,
        is_required=field.is_required(),
    )


def _kinds(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in {Union, UnionType} else (annotation,)


def _declaring(settings: type[BaseSettings], name: str) -> type:
    """The class that brought the field, though others may give it another default."""
    return next(kind for kind in reversed(settings.__mro__) if name in _annotations(kind))


def _annotations(kind: type) -> dict[str, Any]:
    return dict(vars(kind).get("__annotations__", {}))


def _metavar(name: str, kinds: tuple[Any, ...]) -> str:
    if Path in kinds:
        return "FILE"
    last = name.rpartition("_")[2].upper()
    return "N" if any(kind in kinds for kind in _NUMBERS) else last


def _text(field: FieldInfo, choices: list[str]) -> str:
    """The description with the choices, and the default in brackets."""
    text, _, default = (field.description or "").partition(_DEFAULT)
    if choices:
        text += ": " + ", ".join(choices)
    if field.is_required():
        return text
    return f"{text} [{default or _value(field.default)}]".replace("%", "%%")


def _value(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, SecretStr):
        return "***"
    return f"{default:g}" if isinstance(default, float) else str(default)


def _shown(flag: Flag) -> str:
    return flag.metavar if flag.is_required else f"[{flag.metavar}]"


def _add(group: Any, flag: Flag) -> None:
    options: dict[str, Any] = {"help": flag.text, "default": argparse.SUPPRESS}
    if flag.is_positional:
        count = None if flag.is_required else "?"
        group.add_argument(flag.field, metavar=flag.metavar, nargs=count, **options)
    elif flag.is_switch:
        switch = argparse.BooleanOptionalAction
        group.add_argument(flag.name, dest=flag.field, action=switch, **options)
    else:
        group.add_argument(flag.name, dest=flag.field, metavar=flag.metavar, **options)


def _epilog(settings: type[BaseSettings], flags: list[Flag]) -> str:
    examples: tuple[str, ...] = getattr(settings, "flag_examples", ())
    parts = ["\n  ".join(["examples:", *examples])] if examples else []
    prefix = settings.model_config.get("env_prefix", "")
    for flag in [each for each in flags if not each.is_positional][:1]:
        variable = f"{prefix}{flag.field.upper()}"
        parts.append(f"Each option is also an environment variable: {flag.name} is {variable}.")
    return "\n\n".join(parts)


def _no_such(given: str, flags: list[Flag]) -> str:
    """One line about an argument that is none; never its value, which may be secret."""
    name = given.partition("=")[0]
    if not name.startswith("-"):
        return f"unexpected argument {name!r}"
    known = [each for flag in flags if not flag.is_positional for each in flag.names]
    near = difflib.get_close_matches(name, known, n=1)
    return f"there is no option {name}" + (f"; did you mean {near[0]}?" if near else "")
