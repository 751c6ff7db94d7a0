"""``triptych serve``: gateway, render and derender in this process, generate in one of its own."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import version

from triptych import logs, tracing
from triptych.errors import DeadlineError, SetupError, UnavailableError
from triptych.event_loop import run_loop
from triptych.hops import Hops, read_secret
from triptych.listening import bind, bracketed
from triptych.models import ModelLocation, ensure
from triptych.serving import (
    Service,
    check_ports,
    first_of,
    serve,
    stop_on_signals,
)
from triptych.settings import ModelSettings, SecretSettings, ServiceSettings, TemplateSettings
from triptych.wire import ModelInfo
from triptych_cli.serve_settings import ServeSettings
from triptych_derender.__main__ import create_derender_service, load_derenderer
from triptych_derender.settings import DerenderSettings
from triptych_gateway.__main__ import create_gateway_service
from triptych_gateway.flows import Panels
from triptych_gateway.in_process import InProcessDerender, InProcessRender
from triptych_gateway.over_grpc import GrpcGenerate
from triptych_gateway.settings import AdmissionSettings, GatewaySettings
from triptych_gateway.vocabularies import WithVocabulary
from triptych_render.__main__ import create_render_service, load_renderer
from triptych_render.settings import RenderSettings

#: Seconds between the end of generate's drain and the kill of a process that does not end.
_CHILD_GRACE_S = 1.5
_PR_SET_PDEATHSIG = 1
_PASSED_TO_GENERATE = {
    "model",
    "served_model_name",
    "max_model_len",
    "max_logprobs",
    "host",
    "device",
    "dtype",
    "threads",
    "kv_cache_gb",
    "log_level",
    "log_format",
    "otlp_endpoint",
    "cors_origins",
    "drain_timeout_s",
}


def main(settings: ServeSettings) -> int:
    check_ports(settings)
    settings = _with_generate_ports(settings)
    logs.configure(settings.log_level, settings.log_format)
    tracing.configure("serve", settings.otlp_endpoint)
    location = ensure(settings.model)
    return run_loop(_serve(settings, location))


async def _serve(settings: ServeSettings, location: ModelLocation) -> int:
    """Serve until a signal (0) or until generate dies (1)."""
    signals = stop_on_signals()
    target = f"{bracketed(settings.host)}:{settings.generate_grpc_port}"
    hops = Hops(secret=read_secret(settings))
    async with _generate_process(settings, hops.secret, signals.now) as process:
        link = GrpcGenerate(target, timeout_s=settings.request_timeout_s, hops=hops)
        services = _services(settings, link)
        died = asyncio.create_task(process.wait())
        info = await _until_up(link, died, signals.drain)
        if info is not None:
            died.add_done_callback(lambda _: signals.drain.set())
            await serve(
                services,
                signals=signals,
                on_ready=lambda: _say_ready(settings, services, info, target),
            )
        is_dead = died.done() and process.returncode not in {0, -signal.SIGINT, -signal.SIGTERM}
        died.cancel()
    if is_dead:
        raise SetupError(f"generate ended with status {process.returncode}; see its message above")
    return 0


def _services(settings: ServeSettings, link: GrpcGenerate) -> list[Service]:
    common = settings.model_dump(include=set(ServiceSettings.model_fields) - {"http_port"})
    secret = settings.model_dump(include=set(SecretSettings.model_fields))
    shared_fields = {*ModelSettings.model_fields, *TemplateSettings.model_fields}
    model = settings.model_dump(include=shared_fields)
    del common["max_body_bytes"]
    render = RenderSettings(
        **common,
        **secret,
        **model,
        max_body_bytes=settings.max_body_bytes,
        http_port=settings.render_http_port,
        grpc_port=settings.render_grpc_port,
    )
    derender = DerenderSettings(
        **common,
        **secret,
        **model,
        state_key=settings.state_key,
        http_port=settings.derender_http_port,
        grpc_port=settings.derender_grpc_port,
    )
    gateway = GatewaySettings(
        **common,
        max_body_bytes=settings.max_body_bytes,
        http_port=settings.http_port,
        **settings.model_dump(include=set(AdmissionSettings.model_fields)),
    )
    renderer, derenderer = load_renderer(render), load_derenderer(derender)
    derender_link = InProcessDerender(derenderer)
    panels = Panels(InProcessRender(renderer), WithVocabulary(link, derender_link), derender_link)
    return [
        create_gateway_service(panels, gateway, [link]),
        create_render_service(renderer, render),
        create_derender_service(derenderer, derender),
    ]


@contextlib.asynccontextmanager
async def _generate_process(
    settings: ServeSettings, secret: bytes | None, now: asyncio.Event
) -> AsyncIterator[Process]:
    """Generate as a child that ends with this process, whatever ends this process.

    It serves until this process's own requests have ended; then it drains too, until ``now``.
    """
    flags: dict[str, object] = {
        **settings.model_dump(include=_PASSED_TO_GENERATE),
        "http_port": settings.generate_http_port,
        "grpc_port": settings.generate_grpc_port,
    }
    command = [sys.executable, "-m", "triptych_cli", "generate"]
    for name, value in flags.items():
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    with _readable(secret) as files:
        command += [f"--hop-secret-file=/dev/fd/{file}" for file in files]
        process = await asyncio.create_subprocess_exec(
            *command, preexec_fn=_end_with_parent, pass_fds=files
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        limit_s = settings.drain_timeout_s + _CHILD_GRACE_S
        await first_of(process.wait(), now.wait(), timeout_s=limit_s)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@contextlib.contextmanager
def _readable(secret: bytes | None) -> Iterator[tuple[int, ...]]:
    """A file without a name that holds ``secret``; a child's flags and variables can be seen."""
    if secret is None:
        yield ()
        return
    with tempfile.TemporaryFile() as file:
        file.write(secret)
        file.seek(0)
        yield (file.fileno(),)


async def _until_up(
    link: GrpcGenerate, died: "asyncio.Task[int]", stop: asyncio.Event
) -> ModelInfo | None:
    """What generate says of itself once it serves; None if it died or a signal came first."""
    while not died.done() and not stop.is_set():
        try:
            return await link.info()
        except (UnavailableError, DeadlineError):  # not yet, or too busy starting
            await asyncio.sleep(0.1)
    return None


def _say_ready(
    settings: ServeSettings, services: list[Service], info: ModelInfo, target: str
) -> None:
    gateway = services[0].addresses[0]
    generate_http = f"http://{bracketed(settings.host)}:{settings.generate_http_port}"
    lines = {service.name: list(service.addresses) for service in services}
    lines["generate"] = [generate_http, f"grpc://{target}"]
    print(f"\ntriptych {version('triptych')} serves {info.model} ({info.device}, {info.dtype})\n")
    for name in ("gateway", "render", "generate", "derender"):
        print(f"  {name:<9} {'   '.join(lines[name])}")
    messages = '[{"role": "user", "content": "Say hi."}]'
    body = f'{{"model": "{info.model}", "max_tokens": 40, "messages": {messages}}}'
    print(f"\nsee:\n  {gateway}/lens")
    print(f"\ntry:\n  curl -s {gateway}/v1/chat/completions \\")
    print(f"    -H 'content-type: application/json' -d '{body}'\n", flush=True)


def _end_with_parent() -> None:
    """Runs in the child before it starts: on Linux, SIGTERM when the parent is gone.

    In a process group of its own a terminal's Ctrl-C does not reach it: its parent ends it.
    """
    if sys.platform == "linux":
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _with_generate_ports(settings: ServeSettings) -> ServeSettings:
    """``settings`` with real ports for generate: this process has to know them."""
    names = ("generate_http_port", "generate_grpc_port")
    asked = {name: getattr(settings, name) for name in names}
    chosen = {name: port or _free_port(settings.host) for name, port in asked.items()}
    return settings.model_copy(update=chosen)


def _free_port(host: str) -> int:
    with bind(host, 0) as probe:
        return int(probe.getsockname()[1])
