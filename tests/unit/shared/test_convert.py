"""Structs survive the way through protobuf, whatever they hold."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from triptych import convert, convert_structured
from triptych.errors import InvalidRequestError
from triptych.logprobs import Logprobs, pack_logprobs
from triptych.reply import Rendered, ReplySpec
from triptych.structured import make_vocabulary
from triptych.v1 import generate_pb2
from triptych.wire import (
    ChoiceDelta,
    Generated,
    GenerateDelta,
    GenerateRequest,
    ModelInfo,
    SamplingParams,
    StreamOptions,
    StructuredOutputs,
    WorkerLoad,
)

token_ids = st.integers(0, 2**31 - 1)
float32s = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def logprobs(draw: st.DrawFn) -> Logprobs:
    candidate = st.tuples(token_ids, float32s, st.integers(1, 2**31 - 1))
    return pack_logprobs(draw(st.lists(st.lists(candidate, max_size=4), max_size=4)))


choices = st.builds(
    ChoiceDelta,
    index=st.integers(0, 63),
    token_ids=st.lists(token_ids, max_size=5),
    logprobs=st.none() | logprobs(),
    finish_reason=st.sampled_from([None, "stop", "length", "abort"]),
    stop_reason=st.none() | token_ids | st.text(max_size=5),
)
deltas = st.builds(
    GenerateDelta,
    request_id=st.text(max_size=8),
    choices=st.lists(choices, max_size=3),
    prompt_logprobs=st.none() | logprobs(),
    cached_tokens=st.integers(0, 8192),
)
texts = st.text(max_size=5)
structured = st.one_of(
    st.builds(StructuredOutputs, json=texts, disable_any_whitespace=st.booleans()),
    st.builds(StructuredOutputs, regex=texts),
    st.builds(StructuredOutputs, choice=st.lists(texts, max_size=3)),
    st.builds(StructuredOutputs, grammar=texts),
    st.builds(StructuredOutputs, json_object=st.just(value=True)),
    st.builds(StructuredOutputs, structural_tag=texts),
)
sampling = st.builds(
    SamplingParams,
    n=st.integers(1, 64),
    temperature=st.floats(0, 10),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(-1, 1000),
    min_p=st.floats(0, 1),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0.1, 3),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    max_tokens=st.none() | st.integers(0, 2**31),
    min_tokens=st.integers(0, 100),
    ignore_eos=st.booleans(),
    stop_token_ids=st.lists(token_ids, max_size=3),
    logit_bias=st.none() | st.dictionaries(token_ids, float32s, min_size=1, max_size=3),
    allowed_token_ids=st.none() | st.lists(token_ids, max_size=3),
    bad_words_token_ids=st.none()
    | st.lists(st.lists(token_ids, min_size=1, max_size=3), min_size=1, max_size=3),
    logprobs=st.none() | st.integers(-1, 20),
    prompt_logprobs=st.none() | st.integers(-1, 20),
    logprob_token_ids=st.none() | st.lists(token_ids, max_size=3),
    logprobs_mode=st.sampled_from(["raw", "processed"]),
    structured_outputs=st.none() | structured,
)


@given(sampling)
def test_sampling_params_survive_protobuf(params: SamplingParams) -> None:
    message = generate_pb2.SamplingParams.FromString(
        convert.sampling_to_proto(params).SerializeToString()
    )
    assert convert.sampling_from_proto(message) == params


@given(sampling, st.lists(token_ids, min_size=1, max_size=5), st.none() | st.text(max_size=5))
def test_request_survives_protobuf(
    params: SamplingParams, ids: list[int], salt: str | None
) -> None:
    request = GenerateRequest(
        token_ids=ids,
        sampling_params=params,
        request_id="r1",
        model="m",
        stream=True,
        cache_salt=salt,
        priority=-3,
        resume_from=1,
        choice_index=2,
        tokenizer_fingerprint="0123456789abcdef",
    )
    assert convert.request_from_proto(convert.request_to_proto(request)) == request


@given(deltas)
def test_delta_survives_protobuf(delta: GenerateDelta) -> None:
    encoded = convert.delta_to_proto(delta).SerializeToString()
    message = generate_pb2.GenerateDelta.FromString(encoded)
    assert convert.delta_from_proto(message) == delta


def test_schema_given_as_an_object_travels_as_its_json() -> None:
    params = SamplingParams(structured_outputs=StructuredOutputs(json={"type": "object", "é": [1]}))
    sent = convert.sampling_from_proto(convert.sampling_to_proto(params)).structured_outputs
    assert sent == StructuredOutputs(json='{"type":"object","é":[1]}')


def test_structured_outputs_without_a_kind_are_refused() -> None:
    message = generate_pb2.SamplingParams()
    message.structured_outputs.disable_any_whitespace = True
    with pytest.raises(InvalidRequestError, match="structured_outputs is empty"):
        convert.sampling_from_proto(message)


@given(st.lists(st.binary(max_size=4), max_size=4))
def test_vocabulary_survives_protobuf(tokens: list[bytes]) -> None:
    vocabulary = make_vocabulary("f", tokens)
    encoded = convert_structured.vocabulary_to_proto(vocabulary).SerializeToString()
    message = generate_pb2.Vocabulary.FromString(encoded)
    assert convert_structured.vocabulary_from_proto(message) == vocabulary


def test_rendered_survives_protobuf() -> None:
    request = GenerateRequest(
        token_ids=[1, 2],
        sampling_params=SamplingParams(max_tokens=3),
        request_id="cmpl-1",
        model="m",
        stream=True,
        stream_options=StreamOptions(include_usage=True),
    )
    spec = ReplySpec(
        endpoint="chat", model="m", stream=True, include_usage=True, stop=["é"], top_logprobs=3
    )
    rendered = Rendered(requests=[request], spec=spec)
    assert convert.rendered_from_proto(convert.rendered_to_proto(rendered)) == rendered


def test_answer_survives_protobuf() -> None:
    choice = ChoiceDelta(index=0, token_ids=[5], finish_reason="stop", stop_reason=5)
    answer = Generated(
        request_id="r",
        model="m",
        created=7,
        prompt_tokens=2,
        choices=[choice],
        prompt_token_ids=[1, 2],
        prompt_logprobs=pack_logprobs([[], [(2, -0.5, 1)]]),
        cached_tokens=1,
    )
    message = convert.answer_to_proto(answer)
    assert convert.answer_from_proto(message, request_id="r", model="m", created=7) == answer


LOAD = WorkerLoad(num_running=3, num_waiting=0, num_free_blocks=5, num_blocks=9, num_steps=2**40)


@pytest.mark.parametrize("load", [None, LOAD])
@pytest.mark.parametrize("invariant", [None, True, False])
def test_info_survives_protobuf(invariant: bool | None, load: WorkerLoad | None) -> None:
    info = ModelInfo(
        model="m",
        max_model_len=10,
        vocab_size=20,
        dtype="float32",
        device="cpu",
        max_logprobs=-1,
        invariant=invariant,
        load=load,
        can_resume=load is not None,
        version="1.2.3",
    )
    assert convert.info_from_proto(convert.info_to_proto(info)) == info


@pytest.mark.parametrize("bad", [-1, 2**31, 2**32, 2**70])
def test_token_ids_outside_their_wire_type_are_refused(bad: int) -> None:
    request = GenerateRequest(token_ids=[1, bad], sampling_params=SamplingParams())
    with pytest.raises(InvalidRequestError, match=rf"token_ids\[1\] is {bad}"):
        convert.request_to_proto(request)


@pytest.mark.parametrize(
    "field",
    [{"priority": 2**31}, {"resume_from": -1}, {"choice_index": -1}, {"cache_salt": "\ud800"}],
)
def test_fields_outside_their_wire_type_are_refused(field: dict[str, Any]) -> None:
    request = GenerateRequest(token_ids=[1], sampling_params=SamplingParams(), **field)
    with pytest.raises(InvalidRequestError, match="the request has no place on the wire"):
        convert.request_to_proto(request)


@pytest.mark.parametrize("name", ["allowed_token_ids", "logprob_token_ids", "stop_token_ids"])
def test_id_lists_outside_their_wire_type_are_refused(name: str) -> None:
    ids: dict[str, Any] = {name: [-1]}
    with pytest.raises(InvalidRequestError, match="out of range") as caught:
        convert.sampling_to_proto(SamplingParams(**ids))
    assert caught.value.param == "sampling_params"


def test_text_parameters_have_no_place_on_the_generate_wire() -> None:
    with pytest.raises(InvalidRequestError, match="stop is text"):
        convert.sampling_to_proto(SamplingParams(stop=["a"]))


def test_columns_of_unequal_length_are_refused() -> None:
    message = generate_pb2.Logprobs(counts=[2], token_ids=[1], logprobs=[0.0], ranks=[1])
    with pytest.raises(InvalidRequestError, match="counts add up to 2"):
        convert.logprobs_from_proto(message)


def test_every_sampling_field_is_converted_or_refused() -> None:
    fields = set(SamplingParams.__struct_fields__) - {"stop", "bad_words"}
    proto = set(generate_pb2.SamplingParams.DESCRIPTOR.fields_by_name)
    assert {name.removesuffix("_token_ids") for name in fields} == {
        name.removesuffix("_token_ids") for name in proto
    }
