"""Tracing that is off costs nothing; switched on without OpenTelemetry it says what to install."""

import subprocess
import sys

from triptych import tracing

WITHOUT = """
import sys
sys.modules["opentelemetry"] = None  # importing it now raises
from triptych import tracing
from triptych.errors import SetupError
tracing.configure("x", None)
assert tracing.start("a", {}) is None
try:
    tracing.configure("x", "http://127.0.0.1:4318")
except SetupError as error:
    print(error)
"""


def test_tracing_is_off_by_default() -> None:
    assert tracing.start("a", {"traceparent": "00-" + "1" * 32 + "-" + "1" * 16 + "-01"}) is None
    assert tracing.carried() == ()
    with tracing.current(None):
        tracing.end(None, {}, name="a", is_error=False)


def test_missing_package_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], check=True, capture_output=True, text=True
    )
    assert "pip install 'triptych[otel]'" in done.stdout
