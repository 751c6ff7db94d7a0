"""Where a step's time goes: ``python -m bench.profile`` prints a table for docs/generate.md."""

import statistics
import time
from collections import defaultdict
from typing import Any

import msgspec

from bench.decoding import PLAIN, decoding
from triptych_generate.setup import EngineParts

_STEPS = 20


class _Timed:
    """The compiled kernels, or a layer's halves, with the seconds spent in each call."""

    def __init__(self, kernels: Any, seconds: defaultdict[str, float]) -> None:
        self._kernels = kernels
        self.seconds = seconds

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(self._kernels, name)

        def timed(*args: Any) -> Any:
            start = time.perf_counter()
            out = kernel(*args)
            self.seconds[name] += time.perf_counter() - start
            return out

        setattr(self, name, timed)
        return timed


def main() -> None:
    print("| | " + " | ".join(name for name, *_ in _CASES) + " |")
    print("|---" * (len(_CASES) + 1) + "|")
    columns = [_profile(dtype, at_once, top) for _, dtype, at_once, top in _CASES]
    for name in ("before", "attend", "after", "linear", "score", "everything else", "step"):
        print(f"| {name} | " + " | ".join(f"{one[name] * 1000:.2f}" for one in columns) + " |")


_CASES = (
    ("float32, 1", "float32", 1, None),
    ("float32, 16", "float32", 16, None),
    ("float32, 16, top-20", "float32", 16, 20),
    ("bfloat16, 16", "bfloat16", 16, None),
)


def _profile(dtype: Any, at_once: int, top: int | None) -> defaultdict[str, float]:
    """Seconds a step, by kernel, at about 100 tokens of context."""
    engine, parts = decoding(dtype, at_once, msgspec.structs.replace(PLAIN, logprobs=top))
    steps = []
    timed = _Timed(parts.loaded.kernels, defaultdict(float))
    for is_warm in (False, True):
        if is_warm:
            _install(parts, timed)
        for _ in range(_STEPS):
            start = time.perf_counter()
            engine.step()
            steps.append(time.perf_counter() - start)
    found: defaultdict[str, float] = defaultdict(float)
    found.update({name: seconds / _STEPS for name, seconds in timed.seconds.items()})
    whole = sum(steps[_STEPS:]) / _STEPS
    found["everything else"] = whole - sum(found.values())
    found["step"] = statistics.median(steps[:_STEPS])
    return found


def _install(parts: EngineParts, timed: _Timed) -> None:
    """Put ``timed`` wherever the engine holds the kernels."""
    holders: list[Any] = [parts.runner, parts.runner._steps, *parts.loaded.model.modules()]
    for holder in holders:
        for name, value in list(vars(holder).items()):
            if value is parts.loaded.kernels:
                setattr(holder, name, timed)
            elif name == "_layers":
                for layer in value:
                    layer.halves = _Timed(layer.halves, timed.seconds)
            elif value is not timed and getattr(value, "_kernels", None) is parts.loaded.kernels:
                value._kernels = timed


if __name__ == "__main__":
    main()
