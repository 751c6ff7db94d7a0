"""Deltas of several requests to the packed columns of a session and back."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import compress

import msgspec

from triptych.convert import (
    FINISH_FROM_PROTO,
    FINISH_TO_PROTO,
    logprobs_from_proto,
    logprobs_to_proto,
)
from triptych.errors import InvalidRequestError, TriptychError
from triptych.logprobs import Logprobs
from triptych.rpc_errors import read_error
from triptych.v1 import generate_pb2
from triptych.wire import ChoiceDelta, GenerateDelta

_NO_FACTS: tuple[Logprobs | None, int] = (None, 0)


def pack_deltas(deltas: Iterable[tuple[int, GenerateDelta]]) -> generate_pb2.PackedDeltas:
    """The columns of ``deltas``, each with its request's key; request ids stay behind."""
    columns = _Columns()
    for key, delta in deltas:
        columns.add(key, delta)
    return columns.message()


def unpack_deltas(
    message: generate_pb2.PackedDeltas, request_id_of: Callable[[int], str] = str
) -> list[tuple[int, GenerateDelta]]:
    """The deltas of ``message`` with their keys; ``request_id_of`` a key is what they carry.

    Raises:
        InvalidRequestError: the columns do not fit, since a stranger may have sent them.
    """
    keys, num_choices = message.keys[:], message.num_choices[:]
    choices = _unpack_choices(message)
    _check_fit(
        ("num_choices", len(num_choices), len(keys)),
        ("num_tokens", len(choices), sum(num_choices)),
    )
    prompts = {row: _prompt_facts(facts) for row, facts in message.prompts.items()}
    unpacked, start = [], 0
    for row, key in enumerate(keys):
        end = start + num_choices[row]
        prompt_logprobs, cached_tokens = prompts.get(row, _NO_FACTS)
        delta = GenerateDelta(
            request_id=request_id_of(key),
            choices=choices[start:end],
            prompt_logprobs=prompt_logprobs,
            cached_tokens=cached_tokens,
        )
        unpacked.append((key, delta))
        start = end
    return unpacked


def error_to_proto(key: int, error: TriptychError) -> generate_pb2.RequestError:
    return generate_pb2.RequestError(
        key=key,
        grpc_code=error.grpc_code,
        body=msgspec.json.encode(error.body()),
        retry_after_s=error.retry_after_s,
    )


def error_from_proto(message: generate_pb2.RequestError) -> TriptychError:
    retry_after_s = message.retry_after_s if message.HasField("retry_after_s") else None
    return read_error(message.grpc_code, message.body, retry_after_s)


@dataclass(slots=True)
class _Columns:
    keys: list[int] = field(default_factory=list)
    num_choices: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    reasons: list[generate_pb2.FinishReason.ValueType] = field(default_factory=list)
    are_scored: list[bool] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    stops: dict[int, generate_pb2.StopReason] = field(default_factory=dict)
    prompts: dict[int, generate_pb2.PromptFacts] = field(default_factory=dict)

    def add(self, key: int, delta: GenerateDelta) -> None:
        if delta.prompt_logprobs is not None or delta.cached_tokens:
            self.prompts[len(self.keys)] = generate_pb2.PromptFacts(
                logprobs=logprobs_to_proto(delta.prompt_logprobs),
                cached_tokens=delta.cached_tokens,
            )
        self.keys.append(key)
        self.num_choices.append(len(delta.choices))
        for choice in delta.choices:
            self._add_choice(choice)

    def _add_choice(self, choice: ChoiceDelta) -> None:
        if choice.stop_reason is not None:
            self.stops[len(self.indexes)] = _stop_to_proto(choice.stop_reason)
        self.indexes.append(choice.index)
        self.num_tokens.append(len(choice.token_ids))
        self.reasons.append(FINISH_TO_PROTO[choice.finish_reason])
        self.token_ids += choice.token_ids
        scores = choice.logprobs
        self.are_scored.append(scores is not None)
        if scores is not None:
            self.counts += scores.counts
            self.ids += scores.token_ids
            self.values += scores.logprobs
            self.ranks += scores.ranks

    def message(self) -> generate_pb2.PackedDeltas:
        scores = generate_pb2.Logprobs(
            counts=self.counts, token_ids=self.ids, logprobs=self.values, ranks=self.ranks
        )
        return generate_pb2.PackedDeltas(
            keys=self.keys,
            num_choices=self.num_choices,
            choice_indexes=self.indexes,
            num_tokens=self.num_tokens,
            finish_reasons=self.reasons,
            are_scored=self.are_scored,
            token_ids=self.token_ids,
            logprobs=scores if self.counts else None,
            stops=self.stops,
            prompts=self.prompts,
        )


def _unpack_choices(message: generate_pb2.PackedDeltas) -> list[ChoiceDelta]:
    token_ids, num_tokens = message.token_ids[:], message.num_tokens[:]
    indexes, reasons = message.choice_indexes[:], message.finish_reasons[:]
    are_scored = message.are_scored[:]
    scores = logprobs_from_proto(message.logprobs)
    _check_fit(
        ("choice_indexes", len(indexes), len(num_tokens)),
        ("finish_reasons", len(reasons), len(num_tokens)),
        ("are_scored", len(are_scored), len(num_tokens)),
        ("token_ids", len(token_ids), sum(num_tokens)),
        ("logprobs.counts", len(scores.counts), sum(compress(num_tokens, are_scored))),
    )
    stops = {row: _stop_from_proto(stop) for row, stop in message.stops.items()}
    choices, start, first, entry = [], 0, 0, 0
    for row, num in enumerate(num_tokens):
        logprobs = None
        if are_scored[row]:
            counts = scores.counts[first : first + num]
            last_entry = entry + sum(counts)
            logprobs = Logprobs(
                counts=counts,
                token_ids=scores.token_ids[entry:last_entry],
                logprobs=scores.logprobs[entry:last_entry],
                ranks=scores.ranks[entry:last_entry],
            )
            first, entry = first + num, last_entry
        choices.append(
            ChoiceDelta(
                index=indexes[row],
                token_ids=token_ids[start : start + num],
                logprobs=logprobs,
                finish_reason=FINISH_FROM_PROTO.get(reasons[row]),
                stop_reason=stops.get(row),
            )
        )
        start += num
    return choices


def _prompt_facts(facts: generate_pb2.PromptFacts) -> tuple[Logprobs | None, int]:
    has_scores = facts.HasField("logprobs")
    return logprobs_from_proto(facts.logprobs) if has_scores else None, facts.cached_tokens


def _stop_to_proto(reason: int | str) -> generate_pb2.StopReason:
    if isinstance(reason, str):
        return generate_pb2.StopReason(text=reason)
    return generate_pb2.StopReason(token_id=reason)


def _stop_from_proto(message: generate_pb2.StopReason) -> int | str | None:
    kind = message.WhichOneof("reason")
    return getattr(message, kind) if kind else None


def _check_fit(*columns: tuple[str, int, int]) -> None:
    """Compare the length of each column with what the others need."""
    for name, length, needed in columns:
        if length != needed:
            raise InvalidRequestError(
                f"packed deltas do not fit: {name} has {length} entries, {needed} are needed"
            )
