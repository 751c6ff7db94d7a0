"""A vLLM worker without a model, for the SMG gateway: ``python -m bench.smg_worker``.

Each of its steps gives a token with six candidates to every request, as ``bench.fast_worker`` does;
SMG has a call for each request, and a message for each of its tokens.
"""

import argparse
import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from bench.fast_worker import serve_scripted, token_rows
from triptych.event_loop import run_loop
from triptych.models import ensure
from triptych.rpc import RpcServer
from triptych.v1 import vllm_engine_pb2 as smg
from triptych.v1 import vllm_engine_pb2_grpc
from triptych_generate.smg import SERVICE_NAME
from triptych_generate.smg_messages import (
    Prompt,
    chunk_message,
    complete_message,
    request_from_smg,
)

_Context = grpc.aio.ServicerContext[Any, Any]


class ScriptedVllm(vllm_engine_pb2_grpc.VllmEngineServicer):
    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._rows = itertools.cycle(row[1] for row in token_rows())

    async def Generate(
        self, message: smg.GenerateRequest, context: _Context
    ) -> AsyncIterator[smg.GenerateResponse]:
        prompt = Prompt(request_from_smg(message, message.request_id), None, 0)
        goes_on, ends = (delta.choices[0] for delta in next(self._rows))
        chunk = chunk_message(goes_on, prompt)
        for _ in range(message.sampling_params.max_tokens):
            await asyncio.sleep(self._step_s - time.perf_counter() % self._step_s)
            yield chunk
        yield complete_message(ends, prompt)

    async def HealthCheck(
        self, request: smg.HealthCheckRequest, context: _Context
    ) -> smg.HealthCheckResponse:
        return smg.HealthCheckResponse(healthy=True, message="serving")

    async def Abort(self, request: smg.AbortRequest, context: _Context) -> smg.AbortResponse:
        return smg.AbortResponse()

    async def GetModelInfo(
        self, request: smg.GetModelInfoRequest, context: _Context
    ) -> smg.GetModelInfoResponse:
        directory = ensure("smollm2").directory
        config = json.loads((directory / "config.json").read_bytes())
        return smg.GetModelInfoResponse(
            model_path=str(directory),
            tokenizer_path=str(directory),
            is_generation=True,
            max_context_length=8192,
            max_req_input_len=8192,
            vocab_size=config["vocab_size"],
            served_model_name="smollm2",
            model_type=config["model_type"],
            architectures=config["architectures"],
        )

    async def GetServerInfo(
        self, request: smg.GetServerInfoRequest, context: _Context
    ) -> smg.GetServerInfoResponse:
        return smg.GetServerInfoResponse(data_parallel_size=1, max_num_seqs=256)

    async def GetLoads(
        self, request: smg.GetLoadsRequest, context: _Context
    ) -> smg.GetLoadsResponse:
        return smg.GetLoadsResponse(dp_rank_count=1, loads=[smg.SchedulerLoad()])


async def serve(step_s: float) -> int:
    server = RpcServer([SERVICE_NAME])
    vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(ScriptedVllm(step_s), server.server)
    return await serve_scripted([server])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, required=True)
    run_loop(serve(parser.parse_args().step_ms / 1000))
