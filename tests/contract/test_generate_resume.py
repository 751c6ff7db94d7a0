"""resume_from and choice_index over JSON, a stream and gRPC: what each door gives."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.generate_runs import Doors, answer, ask, front_doors, running_service
from support.tiny_models import make_tiny_model
from triptych.convert import delta_from_proto, request_to_proto
from triptych.wire import GenerateRequest, StreamOptions

PROMPT = list(range(20, 30))
NUM_DONE = 3


async def _json(doors: Doors, request: GenerateRequest) -> list[Any]:
    answer = await doors.http.post("/inference/v1/generate", content=msgspec.json.encode(request))
    assert answer.status_code == 200, answer.text
    return [answer.json()]


async def _events(doors: Doors, request: GenerateRequest) -> list[Any]:
    asked = msgspec.structs.replace(request, stream=True)
    answer = await doors.http.post("/inference/v1/generate", content=msgspec.json.encode(asked))
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def _grpc(doors: Doors, request: GenerateRequest) -> list[Any]:
    messages = doors.grpc.Generate(request_to_proto(request))
    return [msgspec.to_builtins(delta_from_proto(message)) async for message in messages]


@pytest.mark.parametrize("door", [_json, _events, _grpc])
async def test_resumed_choice_keeps_its_index_and_counts_only_what_is_new(
    door: Any, tmp_path: Path
) -> None:
    params = {"max_tokens": 6, "temperature": 1.0, "seed": 8, "logprobs": 1, "prompt_logprobs": 1}
    model_dir = make_tiny_model("llama", tmp_path)
    async with running_service(model_dir) as service, front_doors(service) as doors:
        whole = (await answer(service, ask(PROMPT, n=2, **params))).choices[1]
        request = msgspec.structs.replace(
            ask(PROMPT + whole.token_ids[:NUM_DONE], **params),
            resume_from=NUM_DONE,
            choice_index=1,
            return_token_ids=True,
            stream_options=StreamOptions(include_usage=True),
        )
        parts = await door(doors, request)
    choices = [choice for part in parts for choice in part["choices"]]
    assert {choice["index"] for choice in choices} == {1}
    ids = [each for choice in choices for each in choice["token_ids"]]
    assert ids == whole.token_ids[NUM_DONE:]
    assert choices[-1]["finish_reason"] == "length"
    assert all(part.get("prompt_logprobs") is None for part in parts)
    if door is not _grpc:
        assert parts[0]["prompt_token_ids"] == PROMPT
        assert parts[-1]["usage"]["prompt_tokens"] == len(PROMPT)
        assert parts[-1]["usage"]["completion_tokens"] == len(ids)


@pytest.mark.parametrize("door", [_json, _events, _grpc])
async def test_resume_of_a_complete_choice_is_its_end(door: Any, tmp_path: Path) -> None:
    request = msgspec.structs.replace(
        ask([*PROMPT, 4, 5], max_tokens=2), resume_from=2, choice_index=3
    )
    model_dir = make_tiny_model("llama", tmp_path)
    async with running_service(model_dir) as service, front_doors(service) as doors:
        (part,) = await door(doors, request)
    (choice,) = part["choices"]
    assert (choice["index"], choice["token_ids"]) == (3, [])
    assert choice["finish_reason"] == "length"
