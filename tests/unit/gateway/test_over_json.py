"""vLLM as a generate worker: its recorded answers as our deltas, its refusals as our errors."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse

from support.net import listening
from support.stack import free_ports
from triptych.drain import Drain
from triptych.errors import (
    BodyTooLargeError,
    DeadlineError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    TriptychError,
    UnavailableError,
)
from triptych.wire import (
    Generated,
    GenerateDelta,
    GenerateRequest,
    SamplingParams,
    StructuredOutputs,
    join_deltas,
)
from triptych_gateway.generate_link import generate_link
from triptych_gateway.over_grpc import GrpcGenerate
from triptych_gateway.over_json import JsonGenerate
from triptych_gateway.vllm_bodies import info_of_models

#: Exchanges with vLLM 0.32; the README beside them says how they were made.
RECORDINGS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "contract" / "data" / "vllm_generate.json").read_text()
)
PROMPT = [504, 3575, 282, 4649, 314]
DONE = b"data: [DONE]\n\n"


class FakeVllm:
    """A server that answers every request alike. ``asked``: the bodies that came."""

    def __init__(
        self,
        *pieces: bytes,
        status: int = 200,
        media_type: str = "application/json",
        headers: dict[str, str] | None = None,
        hangs: bool = False,
    ) -> None:
        """``hangs``: nothing follows the pieces, and the answer does not end."""
        self.asked: list[Any] = []
        self.left = asyncio.Event()
        self.app = FastAPI()
        self.app.state.drain = Drain()  # `listening` looks at it

        async def body() -> AsyncIterator[bytes]:
            try:
                for piece in pieces:
                    yield piece
                    await asyncio.sleep(0)
                if hangs:
                    await asyncio.Event().wait()
            finally:
                self.left.set()

        @self.app.post("/inference/v1/generate")
        async def generate(request: Request) -> Response:
            self.asked.append(await request.json())
            return StreamingResponse(body(), status, headers, media_type)

        @self.app.get("/v1/models")
        async def models() -> dict[str, Any]:
            return {"object": "list", "data": [{"id": "smol", "max_model_len": 4096, "root": "x"}]}


def replay(name: str) -> FakeVllm:
    """vLLM that answers as recorded; a stream comes in pieces that cut its events anywhere."""
    recorded = RECORDINGS[name]["answer"]
    if not isinstance(recorded, list):
        return FakeVllm(json.dumps(recorded).encode(), status=RECORDINGS[name]["status"])
    events = b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in recorded) + DONE
    pieces = [events[start : start + 97] for start in range(0, len(events), 97)]
    return FakeVllm(*pieces, media_type="text/event-stream")


@asynccontextmanager
async def linked(vllm: FakeVllm, *, timeout_s: float = 10) -> AsyncIterator[JsonGenerate]:
    async with listening(vllm.app) as service:
        link = JsonGenerate(service.addresses[0], timeout_s=timeout_s)
        try:
            yield link
        finally:
            await link.close()


def ask(**params: Any) -> GenerateRequest:
    return GenerateRequest(
        token_ids=PROMPT, sampling_params=SamplingParams(**params), request_id="r", model="smol"
    )


async def answer(vllm: FakeVllm, request: GenerateRequest, *, timeout_s: float = 10) -> Generated:
    async with linked(vllm, timeout_s=timeout_s) as link:
        deltas = [delta async for delta in link.generate(request)]
    assert {delta.request_id for delta in deltas} == {"r"}
    choices, prompt_logprobs = join_deltas(deltas)
    return Generated(
        request_id="r",
        model="",
        created=0,
        prompt_tokens=len(PROMPT),
        choices=choices,
        prompt_logprobs=prompt_logprobs,
    )


def recorded_top(name: str) -> list[list[tuple[int, float, int]]]:
    """Candidates per position of the first choice, as recorded."""
    recorded = RECORDINGS[name]["answer"]
    parts = recorded if isinstance(recorded, list) else [recorded]
    return [
        [(each["token_id"], each["logprob"], each["rank"]) for each in entry["top_logprobs"]]
        for part in parts
        for entry in part["choices"][0]["logprobs"]["content"]
    ]


async def test_stream_is_asked_for_as_recorded_and_read_as_deltas() -> None:
    name = "20_generate_lp3_stream"
    vllm = replay(name)
    (choice,) = (await answer(vllm, ask(temperature=0, max_tokens=8, logprobs=2))).choices
    recorded = RECORDINGS[name]["request"]["json"]
    (body,) = vllm.asked
    assert body["token_ids"] == recorded["token_ids"]
    assert body["stream"] is recorded["stream"]
    assert recorded["sampling_params"].items() <= body["sampling_params"].items()
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert [list(map(tuple, each)) for each in choice.logprobs.positions()] == [
        each[:2] for each in recorded_top(name)
    ]
    assert choice.token_ids == [each[0][0] for each in recorded_top(name)]


async def test_sampled_token_outside_the_best_leaves_room_for_all_of_them() -> None:
    """vLLM cuts the sampled token and the best three to three: two of them were asked for."""
    name = "20_generate_lp3_notintop"
    request = ask(max_tokens=2, logprobs=2, prompt_logprobs=0)
    (choice,) = (await answer(replay(name), request)).choices
    assert choice.logprobs is not None
    assert choice.logprobs.counts == [3, 3]
    assert [list(map(tuple, each)) for each in choice.logprobs.positions()] == recorded_top(name)


async def test_prompt_logprobs_need_a_whole_answer() -> None:
    vllm = replay("20_generate_promptlp2_lp2")
    given = await answer(vllm, ask(temperature=0, max_tokens=1, prompt_logprobs=2, logprobs=1))
    assert vllm.asked[0]["stream"] is False
    assert given.prompt_logprobs is not None
    positions = list(given.prompt_logprobs.positions())
    assert [each[0].token_id if each else None for each in positions] == [None, *PROMPT[1:]]
    assert [candidate.token_id for candidate in positions[1]] == [3575, 29, 28]
    assert positions[1][0].rank == 2923


async def test_scoring_alone_drops_the_token_that_vllm_has_to_generate() -> None:
    vllm = replay("20_generate_promptlp2_lp2")
    given = await answer(vllm, ask(max_tokens=0, prompt_logprobs=2))
    assert vllm.asked[0]["sampling_params"]["max_tokens"] == 1
    (choice,) = given.choices
    assert (choice.token_ids, choice.finish_reason) == ([], "length")
    assert given.prompt_logprobs is not None


async def test_choices_of_a_stream_keep_their_indexes() -> None:
    name = "20_generate_n2_stream"
    given = await answer(replay(name), ask(n=2, seed=1, max_tokens=3))
    expected: dict[int, list[int]] = {0: [], 1: []}
    for event in RECORDINGS[name]["answer"]:
        for choice in event["choices"]:
            expected[choice["index"]] += choice["token_ids"]
    assert {choice.index: choice.token_ids for choice in given.choices} == expected


@pytest.mark.parametrize(("asked_stops", "stop_reason"), [([198], 198), ([], None)])
async def test_stop_reason_names_a_stop_token_and_no_second_eos(
    asked_stops: list[int], stop_reason: int | None
) -> None:
    request = ask(max_tokens=20, stop_token_ids=asked_stops, prompt_logprobs=0)
    (choice,) = (await answer(replay("20_generate_stop_token_ids"), request)).choices
    assert choice.token_ids == [7042, 30, 198]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop_reason)


async def test_listed_ids_are_asked_for_so_that_none_is_cut_off() -> None:
    entry = {"token_id": 5, "logprob": -1.0, "rank": 2}
    content = [{**entry, "top_logprobs": [entry, {"token_id": 7, "logprob": -2.0, "rank": 1}]}]
    choice = {"index": 0, "token_ids": [5], "logprobs": {"content": content}}
    event = {"request_id": "v", "choices": [{**choice, "finish_reason": "length"}]}
    vllm = FakeVllm(b"data: %b\n\n" % json.dumps(event).encode(), DONE)
    given = await answer(vllm, ask(logprob_token_ids=[5, 7]))
    params = vllm.asked[0]["sampling_params"]
    assert (params["logprob_token_ids"], params["logprobs"]) == ([5, 7, 5], 3)
    assert given.choices[0].logprobs is not None
    assert given.choices[0].logprobs.token_ids == [5, 7]
    assert given.choices[0].logprobs.ranks == [0, 0]  # vLLM ranks them among themselves


async def test_finish_reasons_of_others_count_as_stop() -> None:
    event = {
        "request_id": "v",
        "choices": [{"index": 0, "token_ids": [5], "finish_reason": "repetition"}],
    }
    vllm = FakeVllm(b"data: %b\n\n" % json.dumps(event).encode(), DONE)
    (choice,) = (await answer(vllm, ask())).choices
    assert choice.finish_reason == "stop"


@pytest.mark.parametrize("asked", [{"choice": ["yes", "no"]}, {"structural_tag": "{}"}])
async def test_structured_outputs_keep_vllms_names(asked: dict[str, Any]) -> None:
    """A structural tag, too, is vLLM's, as xgrammar's JSON in a string."""
    vllm = replay("20_generate_n2_stream")
    await answer(vllm, ask(structured_outputs=StructuredOutputs(**asked)))
    assert vllm.asked[0]["sampling_params"]["structured_outputs"] == asked


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"bad_words_token_ids": [[5]]}, "bad_words"),
        ({"logprobs_mode": "processed"}, "logprobs_mode"),
    ],
)
async def test_what_vllm_does_not_have_is_refused_by_name(
    params: dict[str, Any], param: str
) -> None:
    vllm = FakeVllm()
    with pytest.raises(InvalidRequestError) as refused:
        await answer(vllm, ask(**params))
    assert refused.value.param == param
    assert not vllm.asked


async def test_an_answer_is_not_resumed() -> None:
    """vLLM's continuation of a longer prompt has other bits, seeds and penalties."""
    resumed = msgspec.structs.replace(ask(), resume_from=2)
    with pytest.raises(UnavailableError):
        await answer(FakeVllm(), resumed)


@pytest.mark.parametrize(
    "name", sorted(name for name, each in RECORDINGS.items() if each["status"] in (400, 404))
)
async def test_refusal_keeps_its_meaning_and_its_words(name: str) -> None:
    recorded = RECORDINGS[name]
    with pytest.raises(TriptychError) as refused:
        await answer(replay(name), ask())
    if "error" not in recorded["answer"]:  # no such path: this is not what we want it to be
        assert isinstance(refused.value, InternalError)
        return
    assert refused.value.http_status == recorded["status"]
    assert refused.value.message == recorded["answer"]["error"]["message"]
    assert refused.value.param == recorded["answer"]["error"]["param"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, InternalError),  # the gateway's key, not its client's
        (403, InternalError),  # --enable-scale-out was forgotten
        (404, InternalError),
        (413, BodyTooLargeError),
        (429, OverloadedError),
        (500, InternalError),
        (502, InternalError),
        (503, UnavailableError),
        (504, DeadlineError),
    ],
)
async def test_status_decides_the_error(status: int, kind: type[TriptychError]) -> None:
    with pytest.raises(kind):
        await answer(FakeVllm(b"<html>no</html>", status=status), ask())


async def test_retry_after_is_passed_on() -> None:
    vllm = FakeVllm(b"{}", status=503, headers={"retry-after": "7"})
    with pytest.raises(UnavailableError) as refused:
        await answer(vllm, ask())
    assert refused.value.retry_after_s == 7


async def test_model_that_is_not_served_is_named() -> None:
    with pytest.raises(ModelNotFoundError, match="nope"):
        await answer(replay("60_err_gen_model"), ask())


def first_event(name: str = "20_generate_lp3_stream") -> bytes:
    return b"data: %b\n\n" % json.dumps(RECORDINGS[name]["answer"][0]).encode()


async def given_until_error(
    vllm: FakeVllm, *, timeout_s: float = 10
) -> tuple[list[GenerateDelta], TriptychError]:
    given: list[GenerateDelta] = []
    async with linked(vllm, timeout_s=timeout_s) as link:
        try:
            async for delta in link.generate(ask()):
                given.append(delta)  # noqa: PERF401  # what came before the error counts
        except TriptychError as error:
            return given, error
    raise AssertionError("the stream ended without an error")


async def test_error_in_a_stream_comes_after_what_was_given() -> None:
    told = {"error": {"message": "out of memory", "type": "x", "param": None, "code": 500}}
    vllm = FakeVllm(first_event(), b"data: %b\n\n" % json.dumps(told).encode(), DONE)
    given, error = await given_until_error(vllm)
    assert len(given) == 1
    assert isinstance(error, InternalError)
    assert "out of memory" in error.message


async def test_stream_that_breaks_off_is_unavailable() -> None:
    given, error = await given_until_error(FakeVllm(first_event()))
    assert len(given) == 1
    assert isinstance(error, UnavailableError)


@pytest.mark.parametrize("pieces", [(), (first_event(),)])
async def test_silence_ends_at_the_deadline(pieces: tuple[bytes, ...]) -> None:
    vllm = FakeVllm(*pieces, hangs=True)
    given, error = await given_until_error(vllm, timeout_s=0.5)
    assert len(given) == len(pieces)
    assert isinstance(error, DeadlineError)


async def test_answer_that_cannot_be_decoded_is_unavailable() -> None:
    vllm = FakeVllm(b"no gzip", headers={"content-encoding": "gzip"})
    _, error = await given_until_error(vllm)
    assert isinstance(error, UnavailableError)


async def test_nothing_that_listens_is_unavailable() -> None:
    (port,) = free_ports(1)
    link = generate_link(f"http://127.0.0.1:{port}", timeout_s=5)
    with pytest.raises(UnavailableError):
        await anext(link.generate(ask()))
    with pytest.raises(UnavailableError):
        await link.info()
    await link.close()


async def test_leaving_closes_the_connection() -> None:
    """A vLLM server aborts a request whose connection is closed."""
    vllm = FakeVllm(first_event(), hangs=True)
    async with linked(vllm) as link:
        async with contextlib.aclosing(link.generate(ask())) as deltas:
            await anext(deltas)
        async with asyncio.timeout(5):
            await vllm.left.wait()


async def test_info_is_what_vllm_says_of_its_model() -> None:
    async with linked(FakeVllm()) as link:
        info = await link.info()
    assert (info.model, info.max_model_len) == ("smol", 4096)


def test_server_without_a_model_is_unavailable() -> None:
    with pytest.raises(UnavailableError, match="vLLM serves no model"):
        info_of_models(b'{"object": "list", "data": []}')


async def test_address_decides_the_link() -> None:
    over_json = generate_link("http://127.0.0.1:1", timeout_s=1)
    over_grpc = generate_link("127.0.0.1:1", timeout_s=1)
    assert isinstance(over_json, JsonGenerate)
    assert isinstance(over_grpc, GrpcGenerate)
    await over_json.close()
    await over_grpc.close()
