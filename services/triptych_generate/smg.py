"""generate as a vLLM worker of the SMG gateway: its ``VllmEngine`` service over the same engine."""

import contextlib
import datetime
import importlib.metadata
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from triptych.drain import Drain
from triptych.rpc_edge import RpcEdge, caller_request_id
from triptych.v1 import vllm_engine_pb2 as smg
from triptych.v1 import vllm_engine_pb2_grpc
from triptych.wire import GenerateDelta, GenerateRequest, join_deltas
from triptych_generate.service import GenerateService
from triptych_generate.smg_messages import (
    Prompt,
    chunk_message,
    complete_message,
    request_from_smg,
)

SERVICE_NAME = "vllm.grpc.engine.VllmEngine"

_Context = grpc.aio.ServicerContext[Any, Any]


class VllmEngineServicer(vllm_engine_pb2_grpc.VllmEngineServicer):
    """What SMG asks of a worker. It ends a request by Abort, or by cancelling the call."""

    def __init__(self, service: GenerateService, drain: Drain) -> None:
        self._service = service
        self._drain = drain
        self._started = time.monotonic()

    async def Generate(
        self, message: smg.GenerateRequest, context: _Context
    ) -> AsyncIterator[smg.GenerateResponse]:
        async with RpcEdge(context, self._drain):
            request = request_from_smg(message, caller_request_id(context, message.request_id))
            answer = self._stream if message.stream else self._whole
            async with contextlib.aclosing(self._service.generate(request)) as deltas:
                async for response in answer(request, deltas):
                    yield response

    async def _stream(
        self, request: GenerateRequest, deltas: AsyncIterator[GenerateDelta]
    ) -> AsyncIterator[smg.GenerateResponse]:
        """A chunk for what each choice gained; a choice's last one once more as its end."""
        cached_tokens = 0
        async for delta in deltas:
            cached_tokens += delta.cached_tokens
            prompt = Prompt(request, delta.prompt_logprobs, cached_tokens)
            for choice in delta.choices:
                yield chunk_message(choice, prompt)
                if choice.finish_reason is not None:
                    yield complete_message(choice, prompt)

    async def _whole(
        self, request: GenerateRequest, deltas: AsyncIterator[GenerateDelta]
    ) -> AsyncIterator[smg.GenerateResponse]:
        given = [delta async for delta in deltas]
        choices, prompt_logprobs = join_deltas(given)
        prompt = Prompt(request, prompt_logprobs, sum(delta.cached_tokens for delta in given))
        for choice in choices:
            yield complete_message(choice, prompt)

    async def HealthCheck(
        self, request: smg.HealthCheckRequest, context: _Context
    ) -> smg.HealthCheckResponse:
        is_healthy = self._service.is_alive and not self._drain.is_draining
        message = "serving" if is_healthy else "stopping, or the step loop has ended"
        return smg.HealthCheckResponse(healthy=is_healthy, message=message)

    async def Abort(self, request: smg.AbortRequest, context: _Context) -> smg.AbortResponse:
        for request_id in request.request_ids:
            self._service.abort(request_id)
        return smg.AbortResponse()

    async def GetModelInfo(
        self, request: smg.GetModelInfoRequest, context: _Context
    ) -> smg.GetModelInfoResponse:
        info, options = self._service.info(), self._service.options
        config = json.loads((options.model_dir / "config.json").read_bytes())
        return smg.GetModelInfoResponse(
            model_path=str(options.model_dir),
            tokenizer_path=str(options.model_dir),
            is_generation=True,
            max_context_length=info.max_model_len,
            max_req_input_len=info.max_model_len,
            vocab_size=info.vocab_size,
            served_model_name=info.model,
            model_type=config.get("model_type", ""),
            architectures=config.get("architectures", []),
            eos_token_ids=sorted(self._service.eos_token_ids),
        )

    async def GetServerInfo(
        self, request: smg.GetServerInfoRequest, context: _Context
    ) -> smg.GetServerInfoResponse:
        busy, options = self._service.occupancy(), self._service.options
        return smg.GetServerInfoResponse(
            active_requests=busy.num_running + busy.num_waiting,
            uptime_seconds=time.monotonic() - self._started,
            server_type="triptych-generate",
            data_parallel_size=1,
            model_dtype=f"torch.{options.dtype}",
            max_num_seqs=options.max_num_sequences,
        )

    async def GetLoads(
        self, request: smg.GetLoadsRequest, context: _Context
    ) -> smg.GetLoadsResponse:
        busy, options = self._service.occupancy(), self._service.options
        num_used = busy.num_blocks - busy.num_free_blocks
        load = smg.SchedulerLoad(
            num_running_reqs=busy.num_running,
            num_waiting_reqs=busy.num_waiting,
            num_total_reqs=busy.num_running + busy.num_waiting,
            num_used_tokens=num_used * options.block_size,
            max_total_num_tokens=busy.num_blocks * options.block_size,
            token_usage=num_used / busy.num_blocks,
            utilization=num_used / busy.num_blocks,
            cache_hit_rate=busy.num_hit / max(busy.num_queried, 1),
            max_running_requests=options.max_num_sequences,
        )
        return smg.GetLoadsResponse(
            timestamp=datetime.datetime.now(datetime.UTC).isoformat(),
            version=importlib.metadata.version("triptych"),
            dp_rank_count=1,
            loads=[load],
        )
