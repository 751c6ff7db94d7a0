"""render's bodies without a server: which endpoint a line is for, and its answer."""

from triptych.lines import field_names
from triptych_render.answers import generate_request_body
from triptych_render.renderer import Renderer


def render_line(renderer: Renderer, line: bytes) -> bytes:
    """What the endpoint that fits ``line`` answers: an object for a chat, a list for prompts.

    Raises:
        TriptychError: as the endpoint.
    """
    names = field_names(line)
    if "prompt" in names and "messages" not in names:
        requests = renderer.render_completion(line).requests
        return b"[" + b",".join(map(generate_request_body, requests)) + b"]"
    return generate_request_body(renderer.render_chat(line).requests[0])
