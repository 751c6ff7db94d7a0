"""Checks at load: paged forward against transformers' own, and the same bits in any batch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.errors import SetupError
from triptych.wire import SamplingParams
from triptych_generate.blocks import BlockPool
from triptych_generate.kv_cache import KvCache, LayerShape
from triptych_generate.loader import LoadedModel
from triptych_generate.runner import MakeRunner, Runner
from triptych_generate.scheduler import Scheduler
from triptych_generate.sequence import Sequence

#: Longer than a KV block, so that block results are added and a chunk starts inside a block.
_PROMPT_LEN = 73
_CHUNK = 40
_NUM_OUTPUT = 3
_NUM_OTHERS = 3
#: Largest mean difference of logprobs, in nats, between the paged and the plain forward.
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}


@dataclass(frozen=True, slots=True)
class PlainReference:
    """A random prompt and ``[prompt, vocab]`` float32 logprobs of transformers' own forward."""

    prompt: list[int]
    logprobs: Tensor


@torch.inference_mode()
def plain_reference(loaded: LoadedModel) -> PlainReference:
    """The reference. Call it before the model's attention is replaced."""
    length = max(2, min(_PROMPT_LEN, loaded.max_positions - _NUM_OUTPUT))
    prompt = _random_prompt(loaded, length, seed=0)
    logits = loaded.model(
        input_ids=torch.tensor([prompt], device=loaded.device), use_cache=False
    ).logits[0]
    return PlainReference(prompt, torch.log_softmax(logits.float(), dim=-1))


def check_against_plain(
    loaded: LoadedModel,
    shapes: dict[int, LayerShape],
    reference: PlainReference,
    *,
    block_size: int,
    make_runner: MakeRunner = Runner,
) -> None:
    """Compare the paged forward, in two chunks, with the plain one.

    Raises:
        SetupError: they differ, so this model would be served wrongly.
    """
    runs = _Runs(loaded, shapes, make_runner, block_size=block_size)
    logits = runs.prompt_logits(reference.prompt, max_step_tokens=_CHUNK)
    expected = reference.logprobs[: len(logits)]
    difference = (torch.log_softmax(logits.float(), dim=-1) - expected).abs().mean().item()
    limit = _TOLERANCE[loaded.dtype]
    if not difference <= limit:
        raise SetupError(
            f"the model's paged forward differs from transformers' plain one by "
            f"{difference:.2g} nats on average (limit {limit:g}): it cannot be served"
        )


def is_invariant(
    loaded: LoadedModel,
    shapes: dict[int, LayerShape],
    prompt: list[int],
    *,
    block_size: int,
    make_runner: MakeRunner = Runner,
) -> bool:
    """Whether a request's logits have the same bits alone, among others, chunked, and re-scored."""
    runs = _Runs(loaded, shapes, make_runner, block_size=block_size)
    alone, output = runs.output_logits([prompt], max_step_tokens=1024)
    others = [
        _random_prompt(loaded, max(1, len(prompt) // (index + 2)), seed=index + 1)
        for index in range(_NUM_OTHERS)
    ]
    among, _ = runs.output_logits([prompt, *others], max_step_tokens=_CHUNK)
    again = runs.prompt_logits(prompt + output, max_step_tokens=1024)[len(prompt) - 1 :]
    return torch.equal(alone, among) and torch.equal(alone[: len(again)], again)


class _Runs:
    """Small greedy runs of the real runner and scheduler, each with fresh KV blocks."""

    def __init__(
        self,
        loaded: LoadedModel,
        shapes: dict[int, LayerShape],
        make_runner: MakeRunner,
        *,
        block_size: int,
    ) -> None:
        self._loaded = loaded
        self._make_runner = make_runner
        self._shapes = shapes
        self._block_size = block_size

    def prompt_logits(self, prompt: list[int], *, max_step_tokens: int) -> Tensor:
        """``[prompt - 1, vocab]``: the logits that score the prompt's tokens but the first."""
        sequence = Sequence(
            0, 0, prompt, len(prompt), len(prompt), SamplingParams(), 0, scores_prompt=True
        )
        return torch.cat([logits for _, logits in self._run([sequence], max_step_tokens)])

    def output_logits(
        self, prompts: list[list[int]], *, max_step_tokens: int
    ) -> tuple[Tensor, list[int]]:
        """The first prompt's logits at each greedy output position, and the output's ids."""
        sequences = [
            Sequence(
                key, 0, list(prompt), len(prompt), len(prompt) + _NUM_OUTPUT, SamplingParams(), 0
            )
            for key, prompt in enumerate(prompts)
        ]
        steps = [logits for logits, _ in self._run(sequences, max_step_tokens)]
        return torch.cat(steps), sequences[0].token_ids[len(prompts[0]) :]

    def _run(self, sequences: list[Sequence], max_step_tokens: int) -> list[tuple[Tensor, Tensor]]:
        """Per step the first sequence's sample logits (0 or 1 rows) and its prompt logits."""
        blocks = sum(-(-one.max_len // self._block_size) for one in sequences)
        scheduler = Scheduler(
            BlockPool(blocks, self._block_size),
            max_step_tokens=max_step_tokens,
            max_num_sequences=len(sequences),
        )
        cache = KvCache(
            self._shapes,
            num_blocks=blocks,
            block_size=self._block_size,
            dtype=self._loaded.dtype,
            device=self._loaded.device,
        )
        runner = self._make_runner(self._loaded, cache)
        for sequence in sequences:
            scheduler.add(sequence)
        steps = []
        while scheduler.has_work:
            plan = scheduler.schedule()
            logits = runner.run(plan)
            is_first = [one is sequences[0] for one in logits.samplers]
            steps.append((logits.sample_logits[is_first], logits.prompt_logits))
            for part in plan.slices:
                part.sequence.num_computed += part.num_tokens
            greedy_ids = logits.sample_logits.argmax(-1).tolist()
            for sequence, token_id in zip(logits.samplers, greedy_ids, strict=True):
                sequence.token_ids.append(token_id)
            for sequence in [part.sequence for part in plan.slices]:
                if _has_ended(sequence):
                    scheduler.remove(sequence)
        return steps


def _has_ended(sequence: Sequence) -> bool:
    """It has its output, or it scores a prompt and all of that is computed."""
    return sequence.is_full and (sequence.num_output > 0 or not sequence.num_uncomputed)


def _random_prompt(loaded: LoadedModel, length: int, *, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(loaded.vocab_size, (length,), generator=generator).tolist()
    return ids
