"""Dispatch of the ``triptych`` command; a command's code is imported only when it runs."""

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from triptych.errors import SetupError
from triptych.grpc_threads import poll_in_one_thread

#: Command -> (module with a ``main(args) -> int``, one line of help).
COMMANDS = {
    "serve": ("triptych_cli.serve", "all services on this machine, ready for an OpenAI client"),
    "prepare": ("triptych_cli.prepare", "fetch and convert a model once, into the cache"),
    "render": ("triptych_render.__main__", "the render service: OpenAI requests to token ids"),
    "generate": ("triptych_generate.__main__", "the generate service: token ids to token ids"),
    "derender": ("triptych_derender.__main__", "the derender service: token ids to OpenAI replies"),
    "gateway": ("triptych_gateway.__main__", "the OpenAI gateway in front of the three"),
    "version": ("triptych_cli.main", "print the version"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status. A command that cannot start prints one line."""
    command, *args = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if command in {"-h", "--help", "help"}:
        print(_usage())
        return 0
    if command in {"version", "--version"}:
        print(f"triptych {version('triptych')}")
        return 0
    if command not in COMMANDS:
        print(f"triptych: there is no command {command!r}\n\n{_usage()}", file=sys.stderr)
        return 2
    poll_in_one_thread()
    try:
        return int(importlib.import_module(COMMANDS[command][0]).main(args))
    except SetupError as error:
        for line in str(error).splitlines():
            print(f"triptych {command}: {line}", file=sys.stderr)
        return 1
    except PermissionError as error:  # most often a mounted volume of another user
        print(
            f"triptych {command}: {error.filename} may not be used by user {os.getuid()}",
            file=sys.stderr,
        )
        return 1
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("triptych"):
            raise
        print(
            f"triptych {command}: {error.name} is not installed; "
            f"try: pip install 'triptych[{command if command != 'serve' else 'all'}]'",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        return 130


def _usage() -> str:
    lines = [f"  {name:<10} {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: triptych COMMAND [options]",
            "",
            "LLM inference split at the token boundary: render, generate, derender.",
            "",
            "commands:",
            *lines,
            "",
            "`triptych COMMAND --help` lists a command's options; each is also an environment",
            "variable, for example TRIPTYCH_GATEWAY_HTTP_PORT.",
        ]
    )
