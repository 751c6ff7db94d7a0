"""Dispatch of the ``triptych`` command; a command's code is imported only when it runs."""

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from triptych.errors import SetupError
from triptych.import_settings import poll_in_one_thread, quieten_transformers

if TYPE_CHECKING:
    from pydantic_settings import BaseSettings


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    ``text``: its line of help. ``module``: has a ``main(settings) -> int``. ``settings``: module
    and class of its settings; all that ``--help`` imports. ``extra``: the package's, for it.
    """

    text: str
    module: str
    settings: str
    extra: str

    def settings_class(self) -> "type[BaseSettings]":
        module, _, name = self.settings.partition(":")
        kind: type[BaseSettings] = getattr(importlib.import_module(module), name)
        return kind


COMMANDS = {
    "serve": Command(
        "all services on this machine, ready for an OpenAI client",
        "triptych_cli.serve",
        "triptych_cli.serve_settings:ServeSettings",
        "all",
    ),
    "prepare": Command(
        "fetch and convert a model once, into the cache",
        "triptych_cli.prepare",
        "triptych_cli.prepare:PrepareSettings",
        "prepare",
    ),
    "render": Command(
        "OpenAI requests to token ids, as a service or on a file",
        "triptych_render.__main__",
        "triptych_render.settings:RenderSettings",
        "render",
    ),
    "generate": Command(
        "token ids to token ids: the service with the model",
        "triptych_generate.__main__",
        "triptych_generate.settings:GenerateSettings",
        "generate",
    ),
    "derender": Command(
        "token ids to OpenAI replies, as a service or on a file",
        "triptych_derender.__main__",
        "triptych_derender.settings:DerenderSettings",
        "derender",
    ),
    "gateway": Command(
        "the OpenAI gateway in front of the three",
        "triptych_gateway.__main__",
        "triptych_gateway.settings:GatewaySettings",
        "gateway",
    ),
    "score": Command(
        "logprob and perplexity of the lines of a file",
        "triptych_cli.score",
        "triptych_cli.client_settings:ScoreSettings",
        "client",
    ),
    "chat": Command(
        "talk to the model in the terminal",
        "triptych_cli.chat",
        "triptych_cli.client_settings:ChatSettings",
        "client",
    ),
    "bench": Command(
        "measure a running server: throughput and latency",
        "triptych_cli.bench.command",
        "triptych_cli.bench.settings:BenchSettings",
        "bench",
    ),
    "completion": Command(
        "print a completion script for bash or zsh",
        "triptych_cli.completion",
        "triptych_cli.completion:CompletionSettings",
        "all",
    ),
    "version": Command(
        "print the version",
        "triptych_cli.version",
        "triptych_cli.version:VersionSettings",
        "all",
    ),
}
_BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status. A command that cannot start prints one line."""
    _open_streams()
    name, *args = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if name == "help" and args and args[0] in COMMANDS:
        name, args = args[0], ["--help"]
    try:
        status = _run(name, args)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output left, as `head` does
        _drop_output()
        return _BROKEN_PIPE
    except OSError as error:  # a full disk, a file where a folder is needed
        _drop_output()
        what = error.strerror or str(error)
        return _fail(name, f"{error.filename}: {what}" if error.filename else what)
    except KeyboardInterrupt:
        return 130
    return status


def _run(name: str, args: list[str]) -> int:
    if name in {"-h", "--help", "help"}:
        print(_usage())
        return 0
    if name == "--version":
        name = "version"
    if name not in COMMANDS:
        return _fail("", f"there is no command {name!r}; there are {', '.join(COMMANDS)}", status=2)
    command = COMMANDS[name]
    poll_in_one_thread()
    quieten_transformers()
    try:
        from triptych.settings import parse_settings  # pydantic: not for the list of commands

        settings = parse_settings(command.settings_class(), args)
        return int(importlib.import_module(command.module).main(settings))
    except SetupError as error:
        return _fail(name, str(error))
    except PermissionError as error:  # most often a mounted volume of another user
        return _fail(name, f"{error.filename} may not be used by user {os.getuid()}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("triptych"):
            raise
        hint = f"try: pip install 'triptych[{command.extra}]'"
        return _fail(name, f"{error.name} is not installed; {hint}")


def _open_streams() -> None:
    """A stream that the caller has closed (``<&-``) is empty, or takes what nobody reads."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # for good


def _drop_output() -> None:
    """What is left of it cannot be written: nothing tries to at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(name: str, message: str, *, status: int = 1) -> int:
    for line in message.splitlines():
        print(f"triptych {name}".strip() + f": {line}", file=sys.stderr)
    return status


def _usage() -> str:
    width = max(map(len, COMMANDS)) + 2
    return "\n".join(
        [
            f"usage: triptych COMMAND [options]        (triptych {version('triptych')})",
            "",
            "LLM inference split at the token boundary: render, generate, derender.",
            "",
            "commands:",
            *(f"  {name:<{width}}{command.text}" for name, command in COMMANDS.items()),
            "",
            "`triptych COMMAND --help` says what a command takes.",
        ]
    )
