"""Logging: one line a record, as text or as JSON, alike for every service.

Prompts, outputs and ids are never logged above DEBUG, keys and secrets never.
"""

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec

from triptych.settings import LogFormat

FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s  %(message)s"
#: Control characters and line ends, which a stranger may put into a path or a request id.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


class TextFormatter(logging.Formatter):
    """One line, whatever the message holds; behind it a traceback on lines of its own."""

    def __init__(self) -> None:
        super().__init__(FORMAT, datefmt="%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        return super().formatMessage(record).translate(_ESCAPES)


class JsonFormatter(logging.Formatter):
    """A JSON object: time (RFC 3339, UTC), level, logger, message, and the record's ``facts``."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def configure(level: str, form: LogFormat = "text") -> None:
    """Send everything from ``level`` up to standard error, and quieten chatty libraries."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging._srcfile = None  # no line says where it was written (logging HOWTO, Optimization)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    chatty = ("uvicorn", "uvicorn.error", "grpc", "asyncio", "httpx", "transformers", "urllib3")
    for name in (*chatty, "opentelemetry"):
        logging.getLogger(name).setLevel(logging.WARNING)


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
