"""One streamed answer: when its parts came, how many tokens it has, how it failed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

DONE = b"[DONE]"
_MAX_DETAIL = 300


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw(b"null")

    def has_output(self) -> bool:
        calls = bytes(self.tool_calls) not in {b"null", b"[]"}
        return bool(self.content or self.reasoning_content or self.reasoning or calls)


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    token_ids: list[int] | None = None

    def has_output(self) -> bool:
        in_delta = self.delta is not None and self.delta.has_output()
        return bool(self.text or self.token_ids or in_delta)


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(_Event)


@dataclass(slots=True)
class Answer:
    """What is known of one answer; times in seconds of one clock.

    ``due``: when its request should have been sent. ``times``: when each part with output came.
    ``num_ids``: ids in it, where the server sends ids. ``error``: the kind of fault for which it
    does not count; ``detail``: what the server says of it.
    """

    due: float
    end: float = 0.0
    times: list[float] = field(default_factory=list)
    num_ids: int = 0
    usage: tuple[int, int] | None = None
    error: str | None = None
    detail: str = ""

    @property
    def counted_by(self) -> str:
        if self.usage is not None:
            return "usage"
        return "ids" if self.num_ids else "chunks"

    @property
    def output_tokens(self) -> int:
        if self.usage is not None:
            return self.usage[1]
        return self.num_ids or len(self.times)


class EventReader:
    """Fills an answer from the parts of an event stream, however they are cut."""

    def __init__(self, answer: Answer, clock: Callable[[], float]) -> None:
        self._answer = answer
        self._clock = clock
        self._rest = b""
        self.is_done = False

    def feed(self, part: bytes) -> None:
        now = self._clock()
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[5:].strip(), now)

    def _take(self, data: bytes, now: float) -> None:
        if data == DONE:
            self.is_done = True
            return
        try:
            event = _decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self._answer.error = "stream: an event that is no JSON of OpenAI's shape"
            return
        if event.error is not None:
            self._answer.error = f"stream: {error_code(event.error)}"
        if event.usage is not None:
            self._answer.usage = (event.usage.prompt_tokens, event.usage.completion_tokens)
        if any(choice.has_output() for choice in event.choices):
            self._answer.times.append(now)
            self._answer.num_ids += sum(len(each.token_ids or ()) for each in event.choices)


def refusal(status: int, body: bytes) -> str:
    """The kind of a refusal: status, and OpenAI's code where there is one."""
    code = error_code(_error_object(body))
    return f"{status} {code}".strip()


def refusal_message(status: int, body: bytes) -> str:
    """What the server says of its refusal, on one line."""
    message = _error_object(body).get("message")
    text = message if isinstance(message, str) else body.decode(errors="replace")
    return " ".join([str(status), *text.split()])[:_MAX_DETAIL]


def error_code(error: dict[str, Any]) -> str:
    """The most telling of code and type; vLLM's code is the status."""
    named = [error.get(name) for name in ("code", "type")]
    return next((each for each in named if isinstance(each, str)), "")


def _error_object(body: bytes) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    error = decoded.get("error", decoded) if isinstance(decoded, dict) else {}
    return error if isinstance(error, dict) else {"message": str(error)}
