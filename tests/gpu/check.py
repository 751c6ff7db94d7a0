"""Check a GPU: the same bits in any batch, and the speed. One command, under 8 minutes:

    python tests/gpu/check.py              # exits with 0: the bits held, 1: not, 3: no GPU here
    python tests/gpu/check.py --device cpu --quick   # the same steps at small scale

The model is the built-in one where it is prepared, else one of its shape with random weights.
Progress goes to stderr, a verdict and one line of JSON to stdout.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils import logging

from triptych.logprobs import Logprobs
from triptych.models import resolve
from triptych.wire import GenerateRequest, SamplingParams, join_deltas
from triptych_generate.options import DTypeName, EngineOptions
from triptych_generate.service import GenerateService

NO_GPU = 3


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is run; lengths in tokens. ``budget_s`` bounds the speed table."""

    prompt_lens: tuple[int, ...]
    num_output: int
    at_once: tuple[int, ...]
    speed_output: int
    speed_prompt: int
    long_prompt: int
    repeats: int
    step_tokens: int
    chunk: int
    budget_s: float


FULL = Scale((70, 1, 7, 64, 129, 33, 700, 300), 32, (1, 4, 16, 64), 128, 64, 1024, 3, 2048, 64, 420)
QUICK = Scale((70, 1, 33), 4, (1, 4), 4, 8, 64, 1, 256, 32, 60)
#: SmolLM2-135M's shape, and a smaller one.
SHAPES: dict[bool, dict[str, Any]] = {
    False: {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    True: {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    },
}


@dataclass(slots=True)
class Report:
    """What was found; ``invariance`` by dtype and situation, ``speed`` in output tokens/s."""

    device: str
    model: str
    torch: str = torch.__version__
    invariance: dict[str, dict[str, bool]] = field(default_factory=dict)
    speed: dict[str, dict[str, float]] = field(default_factory=dict)
    first_token_ms: dict[str, float] = field(default_factory=dict)
    elapsed_s: float = 0.0

    @property
    def held(self) -> bool:
        return all(held for checks in self.invariance.values() for held in checks.values())


class Check:
    """One run over all dtypes."""

    def __init__(self, model_dir: Path, device: str, scale: Scale, report: Report) -> None:
        self._model_dir = model_dir
        self._device = device
        self._scale = scale
        self._report = report
        self._start = time.monotonic()
        draw = random.Random(3)
        config = json.loads((model_dir / "config.json").read_bytes())
        self._vocab = int(config["vocab_size"])
        self._prompts = [self._prompt(length, draw) for length in scale.prompt_lens]

    async def run(self) -> None:
        for dtype in get_args(DTypeName)[:2]:
            await self._check_bits(dtype)
        for dtype in reversed(get_args(DTypeName)[:2]):
            await self._measure(dtype)
        self._report.elapsed_s = round(time.monotonic() - self._start, 1)

    async def _check_bits(self, dtype: DTypeName) -> None:
        found = self._report.invariance[dtype] = {}
        requests = [_ask(ids, self._scale.num_output, logprobs=5) for ids in self._prompts]
        async with self._service(dtype) as service:
            found["self-check at load"] = bool(service.info().invariant)
            alone = [await _answer(service, request) for request in requests]
            self._say(dtype, "alone: done")
            self._note(found, dtype, "among others", await _answers(service, requests) == alone)
            again = [await _answer(service, request) for request in requests]
            self._note(found, dtype, "after the same prefix", again == alone)
            late = [await _answer(service, r) for r in self._with_shared_prefix()]
            self._note(
                found, dtype, "output scored as prompt", await self._rescored(service, alone)
            )
        async with self._service(dtype, max_step_tokens=self._scale.chunk) as service:
            self._note(found, dtype, "chunked", await _answers(service, requests) == alone)
            fresh = await _answers(service, self._with_shared_prefix())
            self._note(found, dtype, "after a shorter prefix", late == fresh)
        async with self._service(dtype, cuda_graphs=False) as service:
            self._note(found, dtype, "without graphs", await _answers(service, requests) == alone)

    def _with_shared_prefix(self) -> list[GenerateRequest]:
        """Each prompt with its last token changed."""
        prompts = [[*ids[:-1], (ids[-1] + 1) % self._vocab] for ids in self._prompts]
        return [_ask(ids, self._scale.num_output, logprobs=5) for ids in prompts]

    async def _rescored(self, service: GenerateService, alone: list["Answer"]) -> bool:
        held = True
        for ids, given in zip(self._prompts, alone, strict=True):
            request = _ask([*ids, *given.token_ids], 0, prompt_logprobs=5)
            scored = await _answer(service, request)
            held &= scored.prompt_scores[len(ids) :] == given.scores
        return held

    async def _measure(self, dtype: DTypeName) -> None:
        speed = self._report.speed[dtype] = {}
        async with self._service(dtype) as service:
            for at_once in self._scale.at_once:
                for logprobs in (None, 20):
                    if self._is_late():
                        self._say(dtype, "out of time: the rest of the speed table is left out")
                        return
                    rate = await self._rate(service, at_once, logprobs)
                    name = f"{at_once} at once, " + ("top-20" if logprobs else "no logprobs")
                    speed[name] = round(rate, 1)
                    self._say(dtype, f"{name}: {rate:.1f} tokens/s")
            milliseconds = await self._first_token_ms(service)
            self._report.first_token_ms[dtype] = round(milliseconds, 2)
            self._say(dtype, f"first token of {self._scale.long_prompt}: {milliseconds:.2f} ms")

    async def _rate(self, service: GenerateService, at_once: int, logprobs: int | None) -> float:
        """Output tokens per second, the median; one run before warms up and records graphs."""
        rates = []
        for run in range(self._scale.repeats + 1):
            draw = random.Random(run)
            prompts = [self._prompt(self._scale.speed_prompt, draw) for _ in range(at_once)]
            requests = [_ask(ids, self._scale.speed_output, logprobs=logprobs) for ids in prompts]
            start = time.perf_counter()
            await _answers(service, requests)
            seconds = time.perf_counter() - start
            rates.append(at_once * self._scale.speed_output / seconds)
        return statistics.median(rates[1:])

    async def _first_token_ms(self, service: GenerateService) -> float:
        times = []
        for run in range(self._scale.repeats + 1):
            request = _ask(self._prompt(self._scale.long_prompt, random.Random(run)), 2)
            start = time.perf_counter()
            stream = service.generate(request)
            await anext(stream)
            times.append(1000 * (time.perf_counter() - start))
            await stream.aclose()
        return statistics.median(times[1:])

    def _prompt(self, length: int, draw: random.Random) -> list[int]:
        return [draw.randrange(self._vocab) for _ in range(length)]

    @asynccontextmanager
    async def _service(self, dtype: DTypeName, **options: Any) -> AsyncIterator[GenerateService]:
        settings: dict[str, Any] = {
            "max_step_tokens": self._scale.step_tokens,
            "kv_cache_bytes": 4 << 30 if self._device != "cpu" else 1 << 24,
            **options,
        }
        service = GenerateService.load(
            EngineOptions(
                model_dir=self._model_dir,
                served_model_name="checked",
                device=self._device,
                dtype=dtype,
                max_num_sequences=min(64, settings["max_step_tokens"]),
                **settings,
            )
        )
        service.start()
        self._say(dtype, "model loaded")
        try:
            yield service
        finally:
            await service.stop()

    def _note(self, found: dict[str, bool], dtype: str, situation: str, held: bool) -> None:
        found[situation] = held
        self._say(dtype, f"{situation}: {'the same bits' if held else 'OTHER BITS'}")

    def _say(self, dtype: str, what: str) -> None:
        elapsed = time.monotonic() - self._start
        print(f"[{elapsed:6.1f} s] {dtype}: {what}", file=sys.stderr, flush=True)

    def _is_late(self) -> bool:
        return time.monotonic() - self._start > self._scale.budget_s


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's ids and scores; floats came from float32, so equal floats are equal bits."""

    token_ids: list[int]
    scores: list[Any]
    prompt_scores: list[Any]


def _ask(token_ids: Iterable[int], max_tokens: int, **params: Any) -> GenerateRequest:
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **params)
    return GenerateRequest(token_ids=list(token_ids), sampling_params=sampling)


async def _answer(service: GenerateService, request: GenerateRequest) -> Answer:
    deltas = [delta async for delta in service.generate(request)]
    (choice,), prompt_logprobs = join_deltas(deltas)
    return Answer(choice.token_ids, _positions(choice.logprobs), _positions(prompt_logprobs))


async def _answers(service: GenerateService, requests: list[GenerateRequest]) -> list[Answer]:
    """All at once."""
    return list(await asyncio.gather(*(_answer(service, request) for request in requests)))


def _positions(logprobs: Logprobs | None) -> list[Any]:
    return [] if logprobs is None else list(logprobs.positions())


@contextmanager
def model_of(arguments: argparse.Namespace) -> Iterator[Path]:
    """The model's directory: as told, the built-in one if prepared, or random weights."""
    built_in = resolve("smollm2")
    if arguments.model is not None:
        yield arguments.model
    elif built_in.is_ready and not arguments.quick:
        yield built_in.directory
    else:
        with tempfile.TemporaryDirectory() as parent:
            directory = Path(parent, "random-weights")
            torch.manual_seed(0)
            config = LlamaConfig(**SHAPES[arguments.quick], initializer_range=0.1)
            AutoModelForCausalLM.from_config(config).save_pretrained(directory)
            yield directory


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", type=Path, help="a Hugging Face directory")
    parser.add_argument("--quick", action="store_true", help="small model, few tokens")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    logging.disable_progress_bar()
    if arguments.device != "cpu" and not torch.cuda.is_available():
        print("no CUDA device here: nothing was checked")
        return NO_GPU
    is_cpu = arguments.device == "cpu"
    name = "cpu" if is_cpu else torch.cuda.get_device_name(arguments.device)
    with model_of(arguments) as model_dir:
        report = Report(device=name, model=model_dir.name)
        scale = QUICK if arguments.quick else FULL
        asyncio.run(Check(model_dir, arguments.device, scale, report).run())
    print("verdict: " + ("the same bits in every situation" if report.held else "BITS DIFFER"))
    fields = {name: getattr(report, name) for name in report.__dataclass_fields__}
    print(json.dumps({"held": report.held, **fields}))
    return 0 if report.held else 1


if __name__ == "__main__":
    sys.exit(main())
