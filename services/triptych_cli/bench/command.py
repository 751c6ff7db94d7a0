"""``triptych bench``, from its settings to its results."""

import asyncio
import importlib
import random
import sys
from pathlib import Path
from typing import NoReturn

import msgspec
from tqdm import tqdm

from triptych.errors import SetupError
from triptych.event_loop import run_loop
from triptych_cli.bench.answers import Answer, refusal_message
from triptych_cli.bench.bodies import PATHS, bodies
from triptych_cli.bench.connection import Address, Connections
from triptych_cli.bench.figures import LevelFigures, level_figures
from triptych_cli.bench.load import Asker, run_level
from triptych_cli.bench.report import (
    Report,
    as_json,
    asked,
    heading,
    level_text,
    make_report,
    saturation,
    summary,
)
from triptych_cli.bench.settings import BenchSettings, Level

_OK = 200


def main(settings: BenchSettings) -> int:
    if settings.plot_file is not None:
        importlib.import_module("matplotlib")  # missing: said now, not after minutes of load
    _check_writable("--json", settings.json_file)
    _check_writable("--plot", settings.plot_file)
    return run_loop(_measure(settings))


def _check_writable(flag: str, path: Path | None) -> None:
    """Say now that a result could not be written; a file that is there stays as it is."""
    if path is None:
        return
    is_new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise SetupError(f"{flag}: {path}: {error.strerror}") from error
    if is_new:
        path.unlink()


async def _measure(settings: BenchSettings) -> int:
    url = settings.url or ("http://127.0.0.1:" + _port(settings))
    address = Address.parse(url)
    connections = Connections(address)
    try:
        model = settings.model or await _first_model(settings, address, connections, url)
        await _warm_up(settings, model, _asker(settings, address, connections))
        report = make_report(settings, url, model, [])
        print(f"{heading(report)}\n{asked(report)}\n", flush=True)
        for number, level in enumerate(settings.levels, start=1):
            figures = await _level(settings, model, number, level, address, connections)
            report.levels.append(figures)
            print(level_text(figures) + "\n", flush=True)
    finally:
        connections.close()
    return _conclude(settings, report)


async def _level(
    settings: BenchSettings,
    model: str,
    number: int,
    level: Level,
    address: Address,
    connections: Connections,
) -> LevelFigures:
    asked_bodies = list(bodies(settings, model, stream=number, count=settings.requests))
    progress: tqdm[NoReturn] = tqdm(
        total=len(asked_bodies), desc=level.label, disable=None, leave=False
    )
    with progress:
        asker = _asker(settings, address, connections, progress)
        rng = random.Random(f"{settings.seed} arrivals {number}")
        answers, client = await run_level(asker, level, asked_bodies, rng)
    return level_figures(level, answers, client)


async def _warm_up(settings: BenchSettings, model: str, asker: Asker) -> None:
    """Requests that do not count.

    Raises:
        SetupError: one of them fails: so would all others.
    """
    for body in bodies(settings, model, stream=0, count=settings.warmup):
        answer = await asker.ask(body, asker.clock())
        if answer.error is not None:
            raise SetupError(f"the first request failed: {answer.detail or answer.error}")


def _asker(
    settings: BenchSettings,
    address: Address,
    connections: Connections,
    progress: "tqdm[NoReturn] | None" = None,
) -> Asker:
    def note(answer: Answer) -> None:
        if progress is not None:
            progress.update()

    return Asker(
        address=address,
        connections=connections,
        path=PATHS[settings.endpoint],
        key=_key(settings),
        timeout_s=settings.timeout_s,
        on_end=note,
    )


async def _first_model(
    settings: BenchSettings, address: Address, connections: Connections, url: str
) -> str:
    """The first model that the server lists."""
    body = bytearray()
    request = address.request("GET", "/v1/models", b"", _key(settings))
    try:
        async with asyncio.timeout(settings.timeout_s):
            status, refused = await connections.ask(request, body.extend)
    except TimeoutError as error:
        raise SetupError(f"{url} does not answer within {settings.timeout_s:g} s") from error
    except OSError as error:
        raise SetupError(f"cannot reach {url}: {error.strerror or error}") from error
    if status != _OK:
        raise SetupError(f"{url}/v1/models: {refusal_message(status, refused)}; give --model")
    try:
        return str(msgspec.json.decode(body)["data"][0]["id"])
    except (msgspec.DecodeError, LookupError, TypeError) as error:
        raise SetupError(f"{url}/v1/models lists no model; give --model") from error


def _conclude(settings: BenchSettings, report: Report) -> int:
    """Summary and files.

    Raises:
        SetupError: no request was answered, or a file cannot be written.
    """
    if len(report.levels) > 1:
        print(summary(report.levels))
    if warning := saturation(report.levels):
        print(f"triptych bench: {warning}", file=sys.stderr)
    if settings.json_file is not None:
        _write_json(report, settings.json_file)
    if settings.plot_file is not None:
        _draw(report, settings.plot_file)
    if not any(each.num_answers for each in report.levels):
        raise SetupError("no request was answered without an error")
    return 0


def _write_json(report: Report, path: Path) -> None:
    try:
        path.write_bytes(as_json(report))
    except OSError as error:
        raise SetupError(f"--json: {path}: {error.strerror}") from error


def _draw(report: Report, path: Path) -> None:
    from triptych_cli.bench.plot import draw  # matplotlib, of the extra

    try:
        draw(report, path)
    except OSError as error:
        raise SetupError(f"--plot: {path}: {error.strerror}") from error


def _port(settings: BenchSettings) -> str:
    return "8002" if settings.endpoint == "generate" else "8000"


def _key(settings: BenchSettings) -> str | None:
    return None if settings.api_key is None else settings.api_key.get_secret_value()
