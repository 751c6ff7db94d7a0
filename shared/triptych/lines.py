"""A panel on the lines of a file or a pipe, without a server: a body a line in, an answer out."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, ClassVar

import msgspec
from pydantic import Field
from pydantic_settings import BaseSettings

from triptych.errors import BodyTooLargeError, ErrorBody, SetupError, TriptychError

#: Standard input, or output.
_STANDARD = "-"


class LineSettings(BaseSettings):
    """Mixed into the settings of panels that also work without a server."""

    flag_group: ClassVar[str] = "files and pipes (JSONL), instead of serving"

    input: str | None = Field(
        None,
        description="answer its lines; - is standard input; default: serve",
        json_schema_extra={"metavar": "FILE"},
    )
    output: str = Field(
        _STANDARD,
        description="- is standard output",
        json_schema_extra={"metavar": "FILE"},
    )


def answer_lines(
    answer: Callable[[bytes], bytes], settings: LineSettings, *, max_line_bytes: int
) -> int:
    """Write ``answer`` of each line as soon as it is read; no more than a line is held.

    A line that is refused gives ``{"error": …}`` in its place, naming its number; empty lines give
    nothing.

    Raises:
        SetupError: a file cannot be opened; at the end, that lines were refused.
    """
    num_lines, refused = 0, []
    with _opened(settings) as (source, target):
        for number, line in numbered_lines(source, max_line_bytes):
            num_lines += 1
            try:
                if len(line) > max_line_bytes:
                    raise BodyTooLargeError(f"it has more than {max_line_bytes:,} bytes")
                written = answer(line)
            except TriptychError as error:
                refused.append(number)
                written = _as_error(error, number)
            target.write(written + b"\n")
            target.flush()
    if refused:
        raise SetupError(f"refused {len(refused)} of {num_lines} lines, first line {refused[0]}")
    return 0


def field_names(line: bytes) -> set[str]:
    """The names in a JSON object; none of what is no object: its reader says what is wrong."""
    try:
        return set(msgspec.json.decode(line, type=dict[str, msgspec.Raw]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return set()


def numbered_lines(source: IO[bytes], max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, numbered from 1, without their ends.

    Of a line over ``max_bytes`` one byte more than that is given, and nothing else is held.
    """
    longest = max_bytes + len(b"\r\n")
    number = 0
    while line := source.readline(longest):
        number += 1
        rest = line
        while len(rest) == longest and not rest.endswith(b"\n"):
            rest = source.readline(longest)
        if line.strip():
            yield number, line.rstrip(b"\r\n")[: max_bytes + 1]


def _as_error(error: TriptychError, number: int) -> bytes:
    detail = error.body().error
    named = msgspec.structs.replace(detail, message=f"line {number}: {detail.message}")
    return msgspec.json.encode(ErrorBody(error=named))


@contextlib.contextmanager
def _opened(settings: LineSettings) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    assert settings.input is not None
    if _is_same(Path(settings.input), Path(settings.output)):
        raise SetupError(f"{settings.output} is both --input and --output")
    with contextlib.ExitStack() as stack:
        source, target = sys.stdin.buffer, sys.stdout.buffer
        if settings.input != _STANDARD:
            source = stack.enter_context(_open(settings.input, "rb"))
        if settings.output != _STANDARD:
            target = stack.enter_context(_open(settings.output, "wb"))
        yield source, target


def _is_same(source: Path, target: Path) -> bool:
    return source.is_file() and target.is_file() and source.samefile(target)


def _open(name: str, mode: str) -> IO[bytes]:
    try:
        return Path(name).open(mode)
    except OSError as error:
        raise SetupError(f"{name}: {error.strerror}") from error
