"""Lines to score, and scores as lines."""

import asyncio
import codecs
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import IO, Any

import msgspec

from triptych.client.fields import OnePrompt
from triptych.client.scores import Score, perplexity
from triptych.errors import ErrorBody, ErrorDetail, InvalidRequestError, SetupError, TriptychError
from triptych_cli.client_settings import InputFormat

_JSON_NAMES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not empty; ``number`` counts all lines from 1."""

    number: int
    raw: bytes


class WrittenLine(msgspec.Struct, frozen=True, kw_only=True):
    """What the totals need of a line that was written, in this run or in one before.

    A line that was refused has no ``logprob``; the ``error`` of another is a field of its input.
    """

    logprob: float | None = None
    num_tokens: int = 0
    num_scored: int = 0
    error: msgspec.Raw = msgspec.Raw(b"null")


@dataclass(slots=True)
class Totals:
    """Sums over the lines that were written."""

    num_lines: int = 0
    num_refused: int = 0
    first_refusal: str = ""
    num_tokens: int = 0
    num_scored: int = 0
    logprob: float = 0.0

    def add(self, line: bytes) -> None:
        """Add a line that was written.

        Raises:
            msgspec.DecodeError: it is neither scored nor refused.
        """
        written = msgspec.json.decode(line, type=WrittenLine)
        if written.logprob is None:
            detail = msgspec.json.decode(written.error, type=ErrorDetail)
            self.first_refusal = self.first_refusal or detail.message
            self.num_refused += 1
        self.num_lines += 1
        self.num_tokens += written.num_tokens
        self.num_scored += written.num_scored
        self.logprob += written.logprob or 0.0

    @property
    def perplexity(self) -> str:
        """Over all scored tokens."""
        value = perplexity(self.logprob, self.num_scored)
        return "none" if value is None else f"{value:.6g}"


def parse_line(line: Line, kind: InputFormat, field: str) -> tuple[OnePrompt, dict[str, Any]]:
    """The text (or token ids) of a line, and the object that it stands in.

    Raises:
        InvalidRequestError: not what ``kind`` and ``field`` promise.
    """
    if kind == "text":
        text = _decoded(line.raw)
        return text, {"text": text}
    try:
        given = msgspec.json.decode(line.raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"not JSON: {error}") from error
    if not isinstance(given, dict):
        raise InvalidRequestError(f"an object is needed, not {type(given).__name__}")
    if field not in given:
        raise InvalidRequestError(f"the object has no field {field!r}")
    value = given[field]
    is_ids = isinstance(value, list) and all(type(each) is int for each in value)
    if not isinstance(value, str) and not is_ids:
        raise InvalidRequestError(f"{field!r} must be a text or a list of token ids")
    return value, given


def kind_of(name: str, first: Line) -> InputFormat:
    """What the lines are, by the file's name or by the first of them."""
    is_json = name.lower().endswith(_JSON_NAMES) or first.raw.lstrip().startswith(b"{")
    return "jsonl" if is_json else "text"


def scored_line(given: dict[str, Any], score: Score, *, has_tokens: bool) -> bytes:
    """``given`` with its score, as JSON."""
    found: dict[str, Any] = {
        "logprob": score.logprob,
        "num_tokens": len(score.tokens),
        "num_scored": len(score.logprobs),
        "perplexity": score.perplexity,
    }
    if has_tokens:
        names = ("token", "token_id", "logprob", "rank")
        found["tokens"] = [{name: getattr(token, name) for name in names} for token in score.tokens]
    return msgspec.json.encode({**given, **found})


def refused_line(line: Line, error: TriptychError) -> bytes:
    detail = error.body().error
    named = msgspec.structs.replace(detail, message=f"line {line.number}: {detail.message}")
    return msgspec.json.encode(ErrorBody(error=named))


async def read_lines(source: IO[bytes], *, num_ahead: int) -> AsyncIterator[Line]:
    """Lines that are not empty, read by a thread, so that a slow pipe stops nothing else.

    The thread closes ``source`` at its end, which nobody waits for: it may be a pipe that is idle.

    Raises:
        SetupError: the source cannot be read.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Line | OSError | None] = asyncio.Queue()
    room = threading.Semaphore(num_ahead)

    def put(item: Line | OSError | None) -> None:
        room.acquire()
        loop.call_soon_threadsafe(queue.put_nowait, item)

    def read() -> None:
        with source, contextlib.suppress(RuntimeError):  # the loop has ended
            try:
                for number, raw in enumerate(source, 1):
                    line = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
                    if line := line.rstrip(b"\r\n"):
                        put(Line(number, line))
            except OSError as error:
                put(error)
            put(None)

    threading.Thread(target=read, name="lines", daemon=True).start()
    while (item := await queue.get()) is not None:
        room.release()
        if isinstance(item, OSError):
            raise SetupError(f"cannot read: {item.strerror}") from item
        yield item


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"not UTF-8 at byte {error.start}") from error
