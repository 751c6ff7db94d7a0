"""Logging: one format for every service. Prompts, outputs and ids are never logged above DEBUG."""

import logging
import sys

FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s  %(message)s"


def configure(level: str) -> None:
    """Send everything from ``level`` up to standard error, and quieten chatty libraries."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT, datefmt="%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "grpc", "asyncio", "httpx", "transformers"):
        logging.getLogger(name).setLevel(logging.WARNING)


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
