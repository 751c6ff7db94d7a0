"""``triptych score``: logprob and perplexity of the lines of a file or a pipe."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
from tqdm import tqdm

from triptych.client.http_async import AsyncClient
from triptych.errors import BodyTooLargeError, InvalidRequestError, SetupError, TriptychError
from triptych_cli.client_settings import InputFormat, ScoreSettings
from triptych_cli.score_lines import (
    Line,
    Totals,
    kind_of,
    parse_line,
    read_lines,
    refused_line,
    scored_line,
)

#: Standard input, or output.
_STANDARD = "-"
#: Lines under way or waiting to be written, per request at a time: one slow line stops no other.
_WINDOW = 4
#: What a line itself is to blame for.
_REFUSALS = (InvalidRequestError, BodyTooLargeError)


def main(settings: ScoreSettings) -> int:
    start = time.monotonic()
    totals = Totals()
    with _files(settings, totals) as (source, target), _progress(settings, totals) as bar:
        asyncio.run(_Run(settings, target, totals, bar).all(source, skip=totals.num_lines))
    print(_summary(totals, time.monotonic() - start), file=sys.stderr)
    if totals.num_refused:
        count = f"{totals.num_refused:,} of {totals.num_lines:,} lines"
        raise SetupError(f"refused {count}, the first: {totals.first_refusal}")
    return 0


class _Run:
    """Scores lines, several at a time, and writes them in order."""

    def __init__(
        self, settings: ScoreSettings, target: IO[bytes], totals: Totals, bar: "tqdm[Any]"
    ) -> None:
        self._settings = settings
        self._target = target
        self._totals = totals
        self._bar = bar
        self._kind: InputFormat = settings.format
        self._room = asyncio.Semaphore(settings.concurrency)

    async def all(self, source: IO[bytes], *, skip: int) -> None:
        """Every line of ``source`` but the first ``skip``.

        Raises:
            SetupError: the gateway cannot go on; what was written stays.
        """
        settings = self._settings
        num_ahead = _WINDOW * settings.concurrency
        under_way: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(num_ahead)
        lines = read_lines(source, num_ahead=num_ahead)
        async with AsyncClient(
            settings.url, api_key=settings.key, timeout_s=settings.timeout_s
        ) as client:
            starting = asyncio.create_task(self._start(lines, skip, client, under_way))
            try:
                while (task := await under_way.get()) is not None:
                    self._write(await task)
                await starting
            finally:
                await _end(starting, under_way)

    async def _start(
        self,
        lines: AsyncIterator[Line],
        skip: int,
        client: AsyncClient,
        under_way: "asyncio.Queue[asyncio.Task[bytes] | None]",
    ) -> None:
        num_seen = 0
        try:
            async for line in lines:
                if self._kind == "auto":
                    self._kind = kind_of(self._settings.file, line)
                num_seen += 1
                if num_seen > skip:
                    await under_way.put(asyncio.create_task(self._answer(line, client)))
        finally:
            await under_way.put(None)

    async def _answer(self, line: Line, client: AsyncClient) -> bytes:
        """What is written of a line."""
        try:
            text, given = parse_line(line, self._kind, self._settings.field)
            async with self._room:
                score = await client.score(text)
        except _REFUSALS as error:
            return refused_line(line, error)
        except TriptychError as error:
            raise SetupError(f"stopped at line {line.number}: {error.message}") from error
        return scored_line(given, score, has_tokens=self._settings.tokens)

    def _write(self, written: bytes) -> None:
        self._target.write(written + b"\n")
        self._target.flush()
        self._totals.add(written)
        self._bar.set_postfix(perplexity=self._totals.perplexity, refresh=False)
        self._bar.update()


async def _end(
    starting: "asyncio.Task[None]", under_way: "asyncio.Queue[asyncio.Task[bytes] | None]"
) -> None:
    """Cancel whatever is still under way."""
    tasks: list[asyncio.Task[Any]] = [starting]
    while not under_way.empty():
        if (task := under_way.get_nowait()) is not None:
            tasks.append(task)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def _files(settings: ScoreSettings, totals: Totals) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Source and target; ``totals`` get what the target has, where it is to be gone on with.

    The source is closed by its reader.
    """
    if settings.resume and settings.output == _STANDARD:
        raise SetupError("--resume needs --output, a file to go on with")
    if settings.output != _STANDARD and _path(settings.output) == _path(settings.file):
        raise SetupError(f"FILE and --output are the same file, {settings.output}")
    source = _open(settings.file, "rb")
    if settings.output == _STANDARD:
        yield source, sys.stdout.buffer
        return
    with _open(settings.output, "ab" if settings.resume else "wb") as target:
        if settings.resume:
            target.truncate(_written(settings.output, totals))
        yield source, target


def _written(name: str, totals: Totals) -> int:
    """The bytes of the whole lines that ``name`` has, which are added to ``totals``."""
    num_bytes = 0
    with _open(name, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                totals.add(line)
            except msgspec.DecodeError as error:
                raise SetupError(f"{name}, line {number}: no score: {error}") from error
            num_bytes += len(line)
    return num_bytes


def _progress(settings: ScoreSettings, totals: Totals) -> "tqdm[Any]":
    """A bar on standard error, where that is a terminal that the scores do not go to."""
    is_shown = sys.stderr.isatty() and not (settings.output == _STANDARD and sys.stdout.isatty())
    num_lines = None
    if is_shown and Path(settings.file).is_file():  # what is read of a pipe is gone
        with _open(settings.file, "rb") as file:
            num_lines = sum(bool(line.rstrip(b"\r\n")) for line in file)
    return tqdm(
        total=num_lines, initial=totals.num_lines, unit="line", disable=not is_shown, leave=False
    )


def _path(name: str) -> Path | None:
    return None if name == _STANDARD else Path(name).resolve()


def _open(name: str, mode: str) -> IO[bytes]:
    try:
        if name == _STANDARD:
            return os.fdopen(os.dup(sys.stdin.fileno()), mode)
        return Path(name).open(mode)
    except OSError as error:
        raise SetupError(f"{name}: {error.strerror}") from error


def _summary(totals: Totals, seconds: float) -> str:
    counts = {
        "lines": totals.num_lines,
        "tokens": totals.num_tokens,
        "scored": totals.num_scored,
    }
    shown = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    found = f"logprob {totals.logprob:.6g}, perplexity {totals.perplexity}"
    return f"{shown}; {found}; {seconds:.1f} s"
