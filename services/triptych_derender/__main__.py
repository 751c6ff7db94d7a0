"""``triptych derender``."""

from triptych.hops import panel_hops
from triptych.lines import answer_lines
from triptych.models import ensure, require_files
from triptych.serving import Service, run_service
from triptych_derender.derenderer import Derenderer
from triptych_derender.http import create_derender_app
from triptych_derender.lines import derender_line
from triptych_derender.rpc import create_derender_rpc
from triptych_derender.settings import DerenderSettings


def main(settings: DerenderSettings) -> int:
    derenderer = load_derenderer(settings)
    if settings.input is not None:
        return answer_lines(
            lambda line: derender_line(derenderer, line),
            settings,
            max_line_bytes=settings.max_body_bytes,
        )
    return run_service(lambda: create_derender_service(derenderer, settings), settings)


def load_derenderer(settings: DerenderSettings) -> Derenderer:
    """The derenderer of the model that ``settings`` names; it needs tokenizer.json alone.

    Raises:
        SetupError: no such model or response template, or no tokenizer.json.
    """
    key = settings.state_key
    location = ensure(settings.model)
    require_files(location.directory, "tokenizer.json")
    return Derenderer.from_directory(
        location.directory,
        model=settings.served_model_name or location.name,
        max_model_len=settings.max_model_len,
        max_logprobs=settings.max_logprobs,
        response_template=settings.response_template,
        state_key=None if key is None else key.get_secret_value().encode(),
    )


def create_derender_service(derenderer: Derenderer, settings: DerenderSettings) -> Service:
    return Service(
        name="derender",
        app=create_derender_app(derenderer, max_body_bytes=settings.max_body_bytes),
        settings=settings,
        hops=panel_hops(settings),
        rpc=create_derender_rpc(derenderer),
        grpc_port=settings.grpc_port,
    )
