"""Generate requests and deltas in the messages of SMG's vLLM interface (``vllm_engine.proto``)."""

from collections.abc import Iterable
from dataclasses import dataclass

from triptych.errors import InvalidRequestError
from triptych.float32 import float32_texts
from triptych.logprobs import Candidate, Logprobs
from triptych.v1 import vllm_engine_pb2 as smg
from triptych.wire import ChoiceDelta, GenerateRequest, SamplingParams

#: Fields that would change the answer, and that generate has no answer to.
_REFUSED = ("mm_inputs", "kv_transfer_params_json", "media_refs")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a message says of the prompt: its request, scores if they go along, cached tokens."""

    request: GenerateRequest
    logprobs: Logprobs | None
    cached_tokens: int


def request_from_smg(message: smg.GenerateRequest, request_id: str) -> GenerateRequest:
    """The request of ``message``.

    Raises:
        InvalidRequestError: it has no token ids, or something that generate cannot do.
    """
    if not message.HasField("tokenized"):
        raise InvalidRequestError("tokenized is missing: generate takes token ids", param="input")
    given = {field.name for field, _ in message.ListFields()}
    for name in _REFUSED:
        if name in given:
            raise InvalidRequestError(f"{name} is not available in generate", param=name)
    return GenerateRequest(
        token_ids=list(message.tokenized.input_ids),
        sampling_params=_sampling_params(message.sampling_params),
        request_id=request_id,
        stream=message.stream,
    )


def chunk_message(choice: ChoiceDelta, prompt: Prompt) -> smg.GenerateResponse:
    """What ``choice`` gained."""
    chunk = smg.GenerateStreamChunk(
        token_ids=choice.token_ids,
        prompt_tokens=len(prompt.request.token_ids),
        completion_tokens=len(choice.token_ids),
        cached_tokens=prompt.cached_tokens,
        output_logprobs=_output_logprobs(choice, prompt.request.sampling_params),
        input_logprobs=_input_logprobs(prompt),
        index=choice.index,
    )
    return smg.GenerateResponse(chunk=chunk)


def complete_message(choice: ChoiceDelta, prompt: Prompt) -> smg.GenerateResponse:
    """The end of ``choice``: all of it, or in a stream what came last."""
    complete = smg.GenerateComplete(
        output_ids=choice.token_ids,
        finish_reason=choice.finish_reason or "",
        prompt_tokens=len(prompt.request.token_ids),
        completion_tokens=len(choice.token_ids),
        cached_tokens=prompt.cached_tokens,
        output_logprobs=_output_logprobs(choice, prompt.request.sampling_params),
        input_logprobs=_input_logprobs(prompt),
        index=choice.index,
    )
    if isinstance(choice.stop_reason, int):
        complete.matched_token_id = choice.stop_reason
    return smg.GenerateResponse(complete=complete)


def _sampling_params(message: smg.SamplingParams) -> SamplingParams:
    constraint = message.WhichOneof("constraint")
    if constraint is not None:
        raise InvalidRequestError(
            f"{constraint} is not available here: structured outputs need the tokenizer's "
            f"vocabulary, which this interface does not carry",
            param=constraint,
        )
    if message.HasField("truncate_prompt_tokens"):
        raise InvalidRequestError(
            "truncate_prompt_tokens is not available", param="truncate_prompt_tokens"
        )
    return SamplingParams(
        n=message.n or 1,
        temperature=_exact(message.temperature) if message.HasField("temperature") else 1.0,
        top_p=_exact(message.top_p) or 1.0,
        top_k=message.top_k,
        min_p=_exact(message.min_p),
        presence_penalty=_exact(message.presence_penalty),
        frequency_penalty=_exact(message.frequency_penalty),
        repetition_penalty=_exact(message.repetition_penalty) or 1.0,
        seed=message.seed if message.HasField("seed") else None,
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        min_tokens=message.min_tokens,
        ignore_eos=message.ignore_eos,
        stop_token_ids=list(message.stop_token_ids),
        logit_bias=dict(message.logit_bias) or None,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        prompt_logprobs=message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
    )


def _exact(value: float) -> float:
    """The decimal that was meant by a float32: 0.7, not 0.699999988."""
    return float(float32_texts([value])[0])


def _output_logprobs(choice: ChoiceDelta, params: SamplingParams) -> smg.OutputLogProbs | None:
    if choice.logprobs is None:
        return None
    positions = list(choice.logprobs.positions())
    return smg.OutputLogProbs(
        token_logprobs=[candidates[0].logprob for candidates in positions],
        token_ids=choice.token_ids,
        top_logprobs=_top_logprobs(positions, params.logprobs),
    )


def _input_logprobs(prompt: Prompt) -> smg.InputLogProbs | None:
    if prompt.logprobs is None:
        return None
    positions = list(prompt.logprobs.positions())
    return smg.InputLogProbs(
        token_logprobs=[
            smg.InputTokenLogProb(value=each[0].logprob if each else None) for each in positions
        ],
        token_ids=prompt.request.token_ids,
        top_logprobs=_top_logprobs(positions, prompt.request.sampling_params.prompt_logprobs),
    )


def _top_logprobs(
    positions: Iterable[list[Candidate]], num_shown: int | None
) -> list[smg.TopLogProbs]:
    """The first ``num_shown`` candidates of each position, as vLLM cuts them; none for 0."""
    if not num_shown:
        return []
    end = None if num_shown < 0 else num_shown
    return [
        smg.TopLogProbs(
            values=[candidate.logprob for candidate in candidates[:end]],
            token_ids=[candidate.token_id for candidate in candidates[:end]],
        )
        for candidates in positions
    ]
