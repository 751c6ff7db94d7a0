"""Models that every test of generate may use."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.tiny_models import make_poisoned_model, make_tiny_model

#: Triton is made for Linux alone.
collect_ignore_glob = [] if sys.platform == "linux" else ["test_triton_*"]


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a family's tiny model, made at first use."""
    made: dict[str, Path] = {}

    def directory_of(family: str) -> Path:
        if family not in made:
            made[family] = make_tiny_model(family, tmp_path_factory.mktemp(family))
        return made[family]

    return directory_of


@pytest.fixture(scope="session")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that gives NaN wherever the token ``POISON`` was seen."""
    return make_poisoned_model(tmp_path_factory.mktemp("poisoned"))
