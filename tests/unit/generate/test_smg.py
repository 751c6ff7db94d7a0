"""generate as a vLLM worker of the SMG gateway: its messages, and its service on a real socket."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from support.generate_runs import answer, ask, running_service, until
from support.tiny_models import MAX_POSITIONS, VOCAB_SIZE, make_tiny_model
from triptych.errors import InvalidRequestError
from triptych.logprobs import pack_logprobs
from triptych.rpc import open_channel
from triptych.v1 import vllm_engine_pb2 as smg
from triptych.v1 import vllm_engine_pb2_grpc
from triptych.wire import ChoiceDelta, GenerateRequest, SamplingParams
from triptych_generate.rpc import create_generate_rpc
from triptych_generate.service import GenerateService
from triptych_generate.smg_messages import (
    Prompt,
    chunk_message,
    complete_message,
    request_from_smg,
)

#: Messages as SMG's own stubs write them.
WRITTEN: dict[str, str] = json.loads(
    (Path(__file__).parent / "data" / "smg_messages.json").read_text()
)["hex"]
PROMPT = list(range(20, 30))


def written(name: str) -> bytes:
    return bytes.fromhex(WRITTEN[name])


def read_request(name: str) -> GenerateRequest:
    return request_from_smg(smg.GenerateRequest.FromString(written(name)), "r")


def test_request_of_smg_is_read_with_the_decimals_that_were_meant() -> None:
    assert read_request("request") == GenerateRequest(
        token_ids=[20, 21, 300],
        sampling_params=SamplingParams(
            temperature=0.7,
            top_p=0.9,
            top_k=5,
            min_p=0.1,
            frequency_penalty=0.2,
            presence_penalty=-0.3,
            repetition_penalty=1.1,
            max_tokens=8,
            min_tokens=2,
            stop_token_ids=[7],
            ignore_eos=True,
            n=2,
            logprobs=3,
            prompt_logprobs=1,
            seed=5,
            logit_bias={9: -1.5},
        ),
        request_id="r",
        stream=True,
    )


def test_request_that_says_nothing_has_the_defaults() -> None:
    expected = GenerateRequest(token_ids=[1], sampling_params=SamplingParams(), request_id="r")
    assert read_request("request_defaults") == expected


@pytest.mark.parametrize(
    "name",
    sorted(name for name in WRITTEN if name.startswith("request_") and name != "request_defaults"),
)
def test_what_generate_cannot_do_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        read_request(name)


SCORES = pack_logprobs([[(7, -0.5, 1), (9, -2.0, 2)], [(8, -1.25, 2), (9, -0.75, 1), (3, -4, 3)]])
CHOICE = ChoiceDelta(
    index=1, token_ids=[7, 8], logprobs=SCORES, finish_reason="stop", stop_reason=8
)
SCORED_PROMPT = Prompt(
    GenerateRequest(
        token_ids=[20, 21], sampling_params=SamplingParams(logprobs=2, prompt_logprobs=2)
    ),
    pack_logprobs([[], [(21, -3.0, 9), (22, -0.25, 1), (5, -1.0, 2)]]),
    cached_tokens=1,
)


def test_answers_are_what_smg_reads() -> None:
    chunk = chunk_message(CHOICE, SCORED_PROMPT)
    complete = complete_message(CHOICE, SCORED_PROMPT)
    assert chunk.SerializeToString(deterministic=True) == written("chunk")
    assert complete.SerializeToString(deterministic=True) == written("complete")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("health", smg.HealthCheckResponse),
        ("abort", smg.AbortRequest),
        ("model_info", smg.GetModelInfoResponse),
        ("server_info", smg.GetServerInfoResponse),
        ("loads", smg.GetLoadsResponse),
    ],
)
def test_fields_have_smgs_numbers(name: str, kind: Any) -> None:
    message = kind.FromString(written(name))
    message.DiscardUnknownFields()
    assert message.SerializeToString(deterministic=True) == written(name)


@pytest.fixture
def llama(tiny_dir: Callable[[str], Path]) -> Path:
    return tiny_dir("llama")


@asynccontextmanager
async def serving(
    service: GenerateService,
) -> AsyncIterator["vllm_engine_pb2_grpc.VllmEngineAsyncStub"]:
    rpc = create_generate_rpc(service)
    port = rpc.bind("127.0.0.1", 0)
    await rpc.start()
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            yield vllm_engine_pb2_grpc.VllmEngineStub(channel)
    finally:
        await rpc.stop(1)


def smg_request(*, stream: bool = True, **params: Any) -> smg.GenerateRequest:
    return smg.GenerateRequest(
        request_id="r",
        tokenized=smg.TokenizedInput(input_ids=PROMPT),
        sampling_params=smg.SamplingParams(**params),
        stream=stream,
    )


async def test_chunks_are_the_bits_that_generate_gives(llama: Path) -> None:
    params: dict[str, Any] = {"max_tokens": 9, "n": 2, "seed": 3, "logprobs": 2}
    async with running_service(llama) as service, serving(service) as stub:
        expected = await answer(service, ask(PROMPT, temperature=0.5, **params))
        call = stub.Generate(smg_request(temperature=0.5, **params))
        given = [each async for each in call]
    for choice in expected.choices:
        chunks = [
            each.chunk
            for each in given
            if each.HasField("chunk") and each.chunk.index == choice.index
        ]
        assert [token for chunk in chunks for token in chunk.token_ids] == choice.token_ids
        assert {chunk.prompt_tokens for chunk in chunks} == {len(PROMPT)}
        assert choice.logprobs is not None
        positions = list(choice.logprobs.positions())
        tops = [each for chunk in chunks for each in chunk.output_logprobs.top_logprobs]
        assert [list(each.token_ids) for each in tops] == [
            [candidate.token_id for candidate in each[:2]] for each in positions
        ]
        sampled = [each for chunk in chunks for each in chunk.output_logprobs.token_logprobs]
        assert sampled == [each[0].logprob for each in positions]
    ends = [each.complete for each in given if each.HasField("complete")]
    assert sorted((end.index, end.finish_reason) for end in ends) == [(0, "length"), (1, "length")]


async def test_whole_answer_is_one_message_a_choice(llama: Path) -> None:
    params: dict[str, Any] = {"max_tokens": 6, "logprobs": 1, "prompt_logprobs": 1}
    async with running_service(llama) as service, serving(service) as stub:
        expected = await answer(service, ask(PROMPT, **params))
        call = stub.Generate(smg_request(stream=False, temperature=0, **params))
        (given,) = [each.complete async for each in call]
    assert list(given.output_ids) == expected.token_ids
    assert (given.finish_reason, given.completion_tokens) == ("length", 6)
    assert list(given.input_logprobs.token_ids) == PROMPT
    assert not given.input_logprobs.token_logprobs[0].HasField("value")
    assert expected.prompt_logprobs is not None
    scores = [each[0].logprob for each in expected.prompt_logprobs.positions() if each]
    assert [each.value for each in given.input_logprobs.token_logprobs[1:]] == scores


async def test_stop_token_is_named_and_eos_is_not(llama: Path, tmp_path: Path) -> None:
    async with running_service(llama) as service, serving(service) as stub:
        ids = (await answer(service, ask(PROMPT, max_tokens=5))).token_ids
        call = stub.Generate(smg_request(stream=False, temperature=0, stop_token_ids=[ids[2]]))
        (stopped,) = [each.complete async for each in call]
    assert (stopped.finish_reason, stopped.matched_token_id) == ("stop", ids[2])
    model_dir = make_tiny_model("llama", tmp_path, eos_token_id=ids[2])
    async with running_service(model_dir) as service, serving(service) as stub:
        call = stub.Generate(smg_request(stream=False, temperature=0))
        (ended,) = [each.complete async for each in call]
        info = await stub.GetModelInfo(smg.GetModelInfoRequest())
    assert ended.finish_reason == "stop"
    assert ended.WhichOneof("matched_stop") is None
    assert list(info.eos_token_ids) == [ids[2]]


async def test_abort_ends_the_stream_and_frees_its_blocks(llama: Path) -> None:
    async with running_service(llama) as service, serving(service) as stub:
        call = aiter(stub.Generate(smg_request(temperature=0, max_tokens=400)))
        await anext(call)
        await stub.Abort(smg.AbortRequest(request_ids=["r", "another"]))
        rest = [each async for each in call]
        assert rest[-1].complete.finish_reason == "abort"
        await until(lambda: service.occupancy().is_idle)


async def test_cancelled_call_frees_its_blocks(llama: Path) -> None:
    async with running_service(llama) as service, serving(service) as stub:
        call = stub.Generate(smg_request(temperature=0, max_tokens=400))
        await call.read()
        call.cancel()
        await until(lambda: service.occupancy().is_idle)


async def test_prompt_that_is_too_long_is_an_invalid_argument(llama: Path) -> None:
    request = smg.GenerateRequest(tokenized=smg.TokenizedInput(input_ids=[5] * 600))
    async with running_service(llama) as service, serving(service) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Generate(request).read()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_drained_worker_is_not_healthy_and_takes_no_work(llama: Path) -> None:
    async with running_service(llama) as service:
        rpc = create_generate_rpc(service)
        port = rpc.bind("127.0.0.1", 0)
        await rpc.start()
        async with open_channel(f"127.0.0.1:{port}") as channel:
            stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
            assert (await stub.HealthCheck(smg.HealthCheckRequest())).healthy
            await rpc.begin_drain()
            assert not (await stub.HealthCheck(smg.HealthCheckRequest())).healthy
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Generate(smg_request()).read()
        await rpc.stop(1)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_infos_and_loads_are_those_of_the_engine(llama: Path) -> None:
    async with running_service(llama, max_num_sequences=8) as service, serving(service) as stub:
        call = stub.Generate(smg_request(temperature=0, max_tokens=400))
        await call.read()
        server = await stub.GetServerInfo(smg.GetServerInfoRequest())
        (load,) = (await stub.GetLoads(smg.GetLoadsRequest())).loads
        model = await stub.GetModelInfo(smg.GetModelInfoRequest())
        num_blocks = service.occupancy().num_blocks
        call.cancel()
    assert (model.served_model_name, model.model_path) == ("tiny", str(llama))
    assert (model.vocab_size, model.max_context_length) == (VOCAB_SIZE, MAX_POSITIONS)
    assert list(model.architectures) == ["LlamaForCausalLM"]
    assert (server.active_requests, server.max_num_seqs) == (1, 8)
    assert load.num_running_reqs == load.num_total_reqs == 1
    assert load.max_total_num_tokens == num_blocks * service.options.block_size
    assert 0 < load.num_used_tokens < load.max_total_num_tokens
    assert load.token_usage == pytest.approx(load.num_used_tokens / load.max_total_num_tokens)
