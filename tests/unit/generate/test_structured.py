"""Requests held to a grammar, on a tiny model whose ids are characters and words."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from support.generate_runs import Answer, answer, answers, ask, running_service
from support.grammars import EOS_ID, TOKENS, VOCABULARY, ask_structured, text_of
from support.tiny_models import VOCAB_SIZE, make_tiny_model
from triptych.errors import InvalidRequestError
from triptych.wire import GenerateRequest, StructuredOutputs
from triptych_generate.service import GenerateService

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = [(7 * i) % 180 for i in range(30)]
SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0, "maximum": 999},
        "ab": {"enum": ["yes", "a"]},
        "list": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["id", "ab"],
}
JSON = StructuredOutputs(json=SCHEMA, disable_any_whitespace=True)
DIGITS = StructuredOutputs(regex="\\d{3}")
#: Two special tokens of the tiny vocabulary around JSON.
OPEN, CLOSE = 181, 182
CALL = StructuredOutputs(
    structural_tag=json.dumps(
        {
            "type": "structural_tag",
            "format": {
                "type": "tag",
                "begin": {"type": "token", "token": OPEN},
                "content": {"type": "json_schema", "json_schema": SCHEMA, "max_whitespace_cnt": 1},
                "end": {"type": "token", "token": CLOSE},
            },
        }
    )
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model("llama", tmp_path_factory.mktemp("llama"), eos_token_id=EOS_ID)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(model_dir: Path) -> AsyncIterator[GenerateService]:
    async with running_service(model_dir) as started:
        assert await started.put_vocabulary(VOCABULARY)
        yield started


def _bits(given: Answer) -> list[Any]:
    return [
        (c.token_ids, c.logprobs and list(c.logprobs.positions()), c.finish_reason)
        for c in given.choices
    ]


def _id(text: str) -> int:
    return TOKENS.index(text.encode())


@given(
    temperature=st.sampled_from([0.0, 1.0, 3.0]),
    seed=st.integers(0, 2**31),
    params=st.sampled_from([{}, {"top_k": 3}, {"top_p": 0.8}, {"frequency_penalty": 1.5}]),
)
async def test_output_is_json_that_the_schema_accepts(
    service: GenerateService, temperature: float, seed: int, params: dict[str, Any]
) -> None:
    asked = ask_structured(PROMPT, JSON, temperature=temperature, seed=seed, n=2, **params)
    for choice in (await answer(service, asked)).choices:
        assert choice.finish_reason == "stop"
        assert choice.token_ids[-1] == EOS_ID
        jsonschema.validate(json.loads(text_of(choice.token_ids)), SCHEMA)


async def test_special_tokens_stand_where_a_structural_tag_names_them(
    service: GenerateService,
) -> None:
    asked = ask_structured(PROMPT, CALL, temperature=1.5, seed=4, n=3, max_tokens=90)
    for choice in (await answer(service, asked)).choices:
        first, *inner, last, end = choice.token_ids
        assert (first, last, end) == (OPEN, CLOSE, EOS_ID)
        assert all(TOKENS[token_id] for token_id in inner)
        jsonschema.validate(json.loads(text_of(inner)), SCHEMA)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
async def test_output_matches_the_pattern(service: GenerateService, temperature: float) -> None:
    pattern = "(ab|yes){1,2}-[0-9a-f]{4}(\\.[xyz]+)?"
    outputs = StructuredOutputs(regex=pattern)
    params: dict[str, Any] = {"temperature": temperature, "n": 5, "max_tokens": 200, "seed": 3}
    given = await answer(service, ask_structured(PROMPT, outputs, **params))
    for choice in given.choices:
        text = text_of(choice.token_ids)
        is_whole = choice.finish_reason == "stop"
        assert re.fullmatch(pattern if is_whole else ".*", text), text
    assert any(choice.finish_reason == "stop" for choice in given.choices)


async def test_output_is_one_of_the_choices(service: GenerateService) -> None:
    choices = ["yes", "no", "abacus", 'say "hi"']
    outputs = StructuredOutputs(choice=choices)
    asked = ask_structured(PROMPT, outputs, temperature=4.0, n=12, seed=1)
    given = await answer(service, asked)
    said = {text_of(choice.token_ids) for choice in given.choices}
    assert said <= set(choices)
    assert len(said) > 1


async def test_output_follows_the_grammar(service: GenerateService) -> None:
    outputs = StructuredOutputs(grammar='root ::= "(" root ")" | "ab"')
    asked = ask_structured(PROMPT, outputs, temperature=2.0, n=8, seed=2)
    for choice in (await answer(service, asked)).choices:
        if choice.finish_reason == "stop":
            text = text_of(choice.token_ids)
            depth = text.count("(")
            assert text == "(" * depth + "ab" + ")" * depth


async def test_forced_tokens_keep_their_raw_logprobs(service: GenerateService) -> None:
    """The reference is the same output scored as a prompt, where no grammar is."""
    given = await answer(service, ask_structured(PROMPT, JSON, logprobs=4, temperature=1.0, seed=1))
    scored = await answer(service, ask(PROMPT + given.token_ids, max_tokens=0, prompt_logprobs=4))
    assert scored.prompt_logprobs is not None
    wanted = list(scored.prompt_logprobs.positions())[len(PROMPT) :]
    assert list(given.logprobs.positions()) == wanted
    assert any(position[0].rank > 1 for position in given.logprobs.positions())


async def test_processed_logprobs_are_of_what_the_grammar_allows(service: GenerateService) -> None:
    asked = ask_structured(PROMPT, DIGITS, logprobs=20, logprobs_mode="processed", temperature=1.0)
    given = await answer(service, asked)
    for token_id, position in zip(given.token_ids, given.logprobs.positions(), strict=True):
        held = [c for c in position if c.logprob > -9999]
        allowed = {EOS_ID} if token_id == EOS_ID else set()
        assert all(c.token_id in allowed or TOKENS[c.token_id].isdigit() for c in held)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("outputs", [JSON, CALL])
async def test_resumed_output_goes_on_exactly_at_every_cut(
    service: GenerateService, outputs: StructuredOutputs, temperature: float
) -> None:
    params: dict[str, Any] = {"temperature": temperature, "seed": 9, "logprobs": 2}
    whole = await answer(service, ask_structured(PROMPT, outputs, **params))
    positions = list(whole.logprobs.positions())
    cuts = range(1, len(whole.token_ids))
    rests = await answers(
        service,
        [
            ask_structured(PROMPT + whole.token_ids[:cut], outputs, resume_from=cut, **params)
            for cut in cuts
        ],
    )
    for cut, rest in zip(cuts, rests, strict=True):
        assert rest.token_ids == whole.token_ids[cut:]
        assert list(rest.logprobs.positions()) == positions[cut:]


async def test_resumed_output_that_does_not_fit_is_refused(service: GenerateService) -> None:
    output = [_id("1"), _id("x"), _id("2")]
    asked = ask_structured(PROMPT + output, DIGITS, resume_from=3)
    with pytest.raises(InvalidRequestError, match=f"position 1: token {_id('x')}") as error:
        await answer(service, asked)
    assert error.value.param == "token_ids"
    assert service.occupancy().is_idle


async def test_other_requests_in_the_batch_do_not_change(service: GenerateService) -> None:
    others: list[GenerateRequest] = [
        ask(PROMPT[:9], max_tokens=20, logprobs=3, ignore_eos=True),
        ask(PROMPT, max_tokens=20, logprobs=3, temperature=1.2, seed=6, n=2),
        ask_structured(PROMPT, DIGITS, logprobs=3, temperature=1.0, seed=4),
    ]
    structured = [ask_structured(PROMPT[i:], JSON, temperature=1.0, seed=i) for i in range(6)]
    alone = [_bits(await answer(service, each)) for each in others + structured]
    among = [_bits(given) for given in await answers(service, others + structured)]
    assert among == alone


async def test_answer_is_the_same_after_preemption(model_dir: Path) -> None:
    requests = [
        ask_structured([each] * 60, JSON, temperature=1.0, seed=each, logprobs=2)
        for each in range(6)
    ]
    async with running_service(model_dir) as service:
        await service.put_vocabulary(VOCABULARY)
        alone = [_bits(await answer(service, request)) for request in requests]
    async with running_service(model_dir, kv_cache_bytes=5 * 64 * 128 * 4) as service:
        await service.put_vocabulary(VOCABULARY)
        assert [_bits(given) for given in await answers(service, requests)] == alone
        assert service.occupancy().num_preemptions > 0


@pytest.mark.parametrize(
    "params",
    [
        {"ignore_eos": True},
        {"min_tokens": 20},
        {"allowed_token_ids": [i for i, token in enumerate(TOKENS) if token.isdigit()]},
        {"bad_words_token_ids": [[EOS_ID]]},
    ],
    ids=str,
)
async def test_complete_output_ends_where_no_end_token_can_be_sampled(
    service: GenerateService, params: dict[str, Any]
) -> None:
    given = await answer(service, ask_structured(PROMPT, DIGITS, logprobs=1, **params))
    (choice,) = given.choices
    assert re.fullmatch("[0-9]{3}", text_of(choice.token_ids))
    assert EOS_ID not in choice.token_ids
    assert (choice.finish_reason, choice.stop_reason) == ("stop", "grammar")
    assert len(given.logprobs.counts) == len(choice.token_ids)


async def test_model_without_eos_ends_complete_output(tmp_path: Path) -> None:
    async with running_service(make_tiny_model("llama", tmp_path)) as service:
        await service.put_vocabulary(VOCABULARY)
        given = await answer(service, ask_structured(PROMPT, DIGITS))
    assert re.fullmatch("[0-9]{3}", text_of(given.token_ids))
    assert given.choices[0].finish_reason == "stop"


async def test_min_tokens_keeps_output_going_while_the_grammar_can(
    service: GenerateService,
) -> None:
    outputs = StructuredOutputs(regex="[0-9]+")
    given = await answer(service, ask_structured(PROMPT, outputs, min_tokens=9, max_tokens=9))
    assert len(given.token_ids) == 9
    assert text_of(given.token_ids).isdigit()


async def test_stop_tokens_end_output_as_the_grammar_lets_them(service: GenerateService) -> None:
    special, comma = 182, _id(",")
    at_end = await answer(service, ask_structured(PROMPT, DIGITS, stop_token_ids=[special]))
    assert at_end.token_ids[-1] in {EOS_ID, special}
    assert re.fullmatch("[0-9]{3}", text_of(at_end.token_ids))
    outputs = StructuredOutputs(regex="a,b,c")
    within = await answer(service, ask_structured(PROMPT, outputs, stop_token_ids=[comma]))
    assert text_of(within.token_ids) == "a,"
    assert within.choices[0].stop_reason == comma


async def test_bad_words_and_allowed_ids_narrow_the_grammar(service: GenerateService) -> None:
    one, two = _id("1"), _id("2")
    params: dict[str, Any] = {
        "allowed_token_ids": [one, two, EOS_ID],
        "bad_words_token_ids": [[one, one]],
    }
    given = await answer(
        service, ask_structured(PROMPT, DIGITS, temperature=1.0, seed=1, n=6, **params)
    )
    for choice in given.choices:
        text = text_of(choice.token_ids)
        assert re.fullmatch("[12]{3}", text)
        assert "11" not in text


async def test_grammar_that_allows_nothing_more_is_an_error_of_its_request_alone(
    service: GenerateService,
) -> None:
    hopeless = ask_structured(PROMPT, DIGITS, allowed_token_ids=[_id("x")])
    good = ask_structured(PROMPT, DIGITS)
    failed, given = await asyncio.gather(
        answer(service, hopeless), answer(service, good), return_exceptions=True
    )
    assert isinstance(failed, InvalidRequestError)
    assert "structured_outputs, allowed_token_ids" in failed.message
    assert isinstance(given, Answer)
    assert re.fullmatch("[0-9]{3}", text_of(given.token_ids))


async def test_grammar_that_is_too_slow_to_follow_ends_its_request(
    service: GenerateService,
) -> None:
    outputs = StructuredOutputs(grammar='root ::= root root | "a" | "ab" | ""')
    slow = ask_structured(PROMPT, outputs, max_tokens=480, bad_words_token_ids=[[EOS_ID]])
    with pytest.raises(InvalidRequestError, match="too ambiguous"):
        await answer(service, slow)
    assert service.is_alive


async def test_output_to_resume_from_is_followed_for_a_bounded_time(
    service: GenerateService,
) -> None:
    outputs = StructuredOutputs(grammar='root ::= root root | "a" | "ab" | ""')
    output = [_id("a")] * 450
    asked = ask_structured([1, *output], outputs, resume_from=450, max_tokens=500)
    with pytest.raises(InvalidRequestError, match="more than 1 s to follow"):
        await answer(service, asked)
    assert service.is_alive


async def test_closing_the_stream_frees_the_blocks(service: GenerateService) -> None:
    deltas = service.generate(ask_structured(PROMPT, JSON))
    await anext(deltas)
    await deltas.aclose()
    given = await answer(service, ask(PROMPT, max_tokens=1))
    assert len(given.token_ids) == 1
    assert service.occupancy().is_idle


async def test_ids_that_the_model_has_and_the_tokenizer_has_not_are_never_sampled(
    service: GenerateService,
) -> None:
    assert len(TOKENS) < VOCAB_SIZE
    outputs = StructuredOutputs(regex="[^x]*")
    asked = ask_structured(PROMPT, outputs, temperature=5.0, n=8, seed=3, ignore_eos=True)
    given = await answer(service, asked)
    sampled = {token_id for choice in given.choices for token_id in choice.token_ids}
    assert all(token_id < len(TOKENS) and TOKENS[token_id] for token_id in sampled)


async def test_prompt_is_scored_beside_a_grammar(service: GenerateService) -> None:
    asked = ask_structured(PROMPT, DIGITS, prompt_logprobs=1, max_tokens=0)
    given = await answer(service, asked)
    assert given.prompt_logprobs is not None
    assert given.token_ids == []


async def test_fingerprint_is_needed(service: GenerateService) -> None:
    asked = msgspec.structs.replace(ask_structured(PROMPT, DIGITS), tokenizer_fingerprint=None)
    with pytest.raises(InvalidRequestError) as error:
        await answer(service, asked)
    assert error.value.param == "tokenizer_fingerprint"
