"""``triptych render``."""

from triptych.hops import panel_hops
from triptych.lines import answer_lines
from triptych.models import ensure, require_files
from triptych.serving import Service, run_service
from triptych_render.http import create_render_app
from triptych_render.lines import render_line
from triptych_render.renderer import Renderer
from triptych_render.rpc import create_render_rpc
from triptych_render.settings import RenderSettings


def main(settings: RenderSettings) -> int:
    renderer = load_renderer(settings)
    if settings.input is not None:
        return answer_lines(
            lambda line: render_line(renderer, line),
            settings,
            max_line_bytes=settings.max_body_bytes,
        )
    return run_service(lambda: create_render_service(renderer, settings), settings)


def load_renderer(settings: RenderSettings) -> Renderer:
    """The renderer of the model that ``settings`` names.

    Raises:
        SetupError: no such model or response template, or its directory lacks files.
    """
    location = ensure(settings.model)
    require_files(location.directory, "tokenizer.json", "config.json")
    return Renderer.from_directory(
        location.directory,
        model=settings.served_model_name or location.name,
        max_model_len=settings.max_model_len,
        max_logprobs=settings.max_logprobs,
        response_template=settings.response_template,
    )


def create_render_service(renderer: Renderer, settings: RenderSettings) -> Service:
    return Service(
        name="render",
        app=create_render_app(renderer, max_body_bytes=settings.max_body_bytes),
        settings=settings,
        hops=panel_hops(settings),
        rpc=create_render_rpc(renderer),
        grpc_port=settings.grpc_port,
    )
