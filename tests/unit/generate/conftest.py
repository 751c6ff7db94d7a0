"""Models that every test of generate may use."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.tiny_models import make_poisoned_model, make_tiny_model

#: Triton is made for Linux alone.
collect_ignore_glob = [] if sys.platform == "linux" else ["test_triton_*"]


@pytest.fixture(scope="session", autouse=True)
def interpreted_dots_treat_rows_alike() -> Iterator[None]:
    """Triton's interpreter multiplies as the units of a GPU do: a row's bits are its own.

    By itself it takes numpy's product, whose BLAS gives a row other bits in another place on some
    CPUs (OpenBLAS 0.3.31 on AMD's Zen 5).
    """
    if sys.platform != "linux":
        yield
        return
    from triton.runtime import interpreter

    def create_dot(_: Any, a: Any, b: Any, d: Any, *__: Any) -> Any:
        left, right = (each.data.astype(d.data.dtype) for each in (a, b))
        product = np.add.reduce(left[..., :, :, None] * right[..., None, :, :], axis=-2)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
        yield


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
