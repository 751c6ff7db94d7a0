"""Asks the direct computation that runs in triptych's environment."""

import contextlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Scores:
    """Natural logs; ``own`` and ``best`` are of ``ids[1:]``, the others of what follows ``ids``."""

    own: list[float]
    best: list[float]
    picks: list[float]
    next_ids: list[int]


class DirectModel:
    """The served model in transformers, without any of our code; it computes a thing once."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._answers: dict[str, Any] = {}

    def scores(self, ids: Sequence[int], picks: Sequence[int] = ()) -> Scores:
        return Scores(**self._ask(ids=list(ids), picks=list(picks)))

    def greedy(self, ids: Sequence[int], max_tokens: int) -> list[int]:
        ids_made: list[int] = self._ask(ids=list(ids), max_tokens=max_tokens)
        return ids_made

    def _ask(self, **asked: Any) -> Any:
        line = json.dumps(asked) + "\n"
        if line not in self._answers:
            self._answers[line] = self._computed(line)
        return self._answers[line]

    def _computed(self, line: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextlib.contextmanager
def running_direct_model(python: str, model_dir: Path) -> Iterator[DirectModel]:
    script = Path(__file__).with_name("direct_model.py")
    with subprocess.Popen(
        [python, str(script), str(model_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "\n", "the direct model did not load"
            yield DirectModel(process)
        finally:
            process.kill()
