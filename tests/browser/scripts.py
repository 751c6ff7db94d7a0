"""What the scripted answers say: plain data, for the tests' environment and the server's."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Answer:
    """``text`` is encoded with SmolLM2's tokenizer and sent token by token.

    ``breaks_after``: tokens after which the worker fails. ``finish_reason`` None: it never ends.
    ``num_tokens``: cut to so many.
    """

    text: str
    finish_reason: Literal["stop", "length"] | None = "stop"
    breaks_after: int | None = None
    num_tokens: int | None = None


#: 👩‍🔬 and 東 are spread over several tokens.
UNICODE = "The sea is 😀 blue, 東京.\n\nGreet 👩‍🔬!<|im_end|>"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
CHANNELS = f"<think>\nOne city: Paris.\n</think>\n\nI will look.\n{CALL}<|im_end|>"
_PARAGRAPH = "It was a bright cold day in April, and the clocks were striking thirteen; 東京 😀. "

ANSWERS = {
    "unicode": Answer(UNICODE),
    "channels": Answer(CHANNELS),
    "broken": Answer(UNICODE, breaks_after=4),
    "endless": Answer("on and on ", finish_reason=None),
    "long": Answer((_PARAGRAPH * 9 + "\n\n") * 12, finish_reason="length", num_tokens=2000),
    "one-paragraph": Answer(_PARAGRAPH * 110, finish_reason="length", num_tokens=2000),
}
