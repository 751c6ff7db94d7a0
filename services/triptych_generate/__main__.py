"""``triptych generate``."""

import contextlib
from collections.abc import AsyncIterator

from triptych import logs
from triptych.hops import panel_hops
from triptych.models import ensure, require_files
from triptych.serving import Service, check_ports, run_service
from triptych_generate.http import create_generate_app
from triptych_generate.options import EngineOptions, GrammarLimits
from triptych_generate.rpc import create_generate_rpc
from triptych_generate.service import GenerateService
from triptych_generate.settings import GenerateSettings


def main(settings: GenerateSettings) -> int:
    logs.configure(settings.log_level, settings.log_format)
    check_ports(settings)
    service = GenerateService.load(engine_options(settings))
    return run_service(lambda: create_generate_service(service, settings), settings)


def engine_options(settings: GenerateSettings) -> EngineOptions:
    """What the engine is started with.

    Raises:
        SetupError: no such model, or its directory lacks files.
    """
    location = ensure(settings.model)
    require_files(location.directory, "config.json")
    return EngineOptions(
        model_dir=location.directory,
        served_model_name=settings.served_model_name or location.name,
        device=settings.device,
        dtype=settings.dtype,
        max_model_len=settings.max_model_len,
        kv_cache_bytes=_bytes(settings.kv_cache_gb),
        prefix_cache=settings.prefix_cache,
        max_step_tokens=settings.max_step_tokens,
        max_num_sequences=settings.max_num_sequences,
        max_waiting=settings.max_waiting,
        max_waiting_tokens=settings.max_waiting_tokens,
        max_logprobs=settings.max_logprobs,
        cuda_graphs=settings.cuda_graphs,
        num_threads=settings.threads,
        grammars=GrammarLimits(compile_timeout_s=settings.compile_timeout_s),
    )


def create_generate_service(service: GenerateService, settings: GenerateSettings) -> Service:
    """The generate service over a loaded engine, whose step loop runs while it listens."""

    @contextlib.asynccontextmanager
    async def step_loop() -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            await service.stop()

    return Service(
        name="generate",
        app=create_generate_app(service, max_body_bytes=settings.max_body_bytes),
        settings=settings,
        hops=panel_hops(settings),
        rpc=create_generate_rpc(service),
        grpc_port=settings.grpc_port,
        background=step_loop,
        died=service.died,
    )


def _bytes(gb: float | None) -> int | None:
    return None if gb is None else int(gb * 1e9)
