"""derender's bodies without a server: which endpoint a line is for, and its answer."""

from triptych.lines import field_names
from triptych_derender.derenderer import Derenderer

_OF_COMPLETIONS = {"completion_request", "generate_responses"}
_OF_CHAT = {"chat_request", "generate_response", "generate_chunk"}


def derender_line(derenderer: Derenderer, line: bytes) -> bytes:
    """What the endpoint that fits ``line`` answers; an answer of generate alone gives a chat reply.

    Raises:
        TriptychError: as the endpoint.
    """
    names = field_names(line)
    if names & _OF_COMPLETIONS:
        return derenderer.derender_completion(line)
    if "choices" in names and not names & _OF_CHAT:
        line = b'{"generate_response":%b}' % line
    return derenderer.derender_chat(line)
