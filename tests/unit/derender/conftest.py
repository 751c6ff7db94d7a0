"""Recorded values; their origin is in data/README.md."""

import json
from pathlib import Path
from typing import Any

import pytest

from triptych_derender.derenderer import Derenderer
from triptych_derender.token_table import parse_token_table

DATA = Path(__file__).parent / "data"
GOLDEN = sorted(path.stem for path in DATA.glob("golden_*.json"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``golden`` is one golden file, parsed; each test runs on all of them."""
    if "golden" in metafunc.fixturenames:
        metafunc.parametrize("golden", GOLDEN, indirect=True)


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Any:
    return json.loads((DATA / f"{request.param}.json").read_text())


@pytest.fixture(scope="session")
def recorded_derender() -> Any:
    return json.loads((DATA / "recorded_derender.json").read_text())


@pytest.fixture(scope="session")
def recorded_server() -> Any:
    return json.loads((DATA / "recorded_server.json").read_text())


@pytest.fixture(scope="session")
def smol() -> Derenderer:
    """A derenderer for the recordings: model ``smol``, context 4096, as recorded."""
    table = parse_token_table((DATA / "recorded_tokenizer.json").read_bytes())
    return Derenderer(table, model="smol", max_model_len=4096)
