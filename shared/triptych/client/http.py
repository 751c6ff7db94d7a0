"""``Client``: the gateway's and the panels' JSON endpoints, blocking."""

import ssl
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any, TypeVar, Unpack

import httpx

from triptych.client import calls, panels, scores
from triptych.client.calls import Call, Plan
from triptych.client.closing import Closing
from triptych.client.events import EventReader
from triptych.client.failures import error_of_answer, http_errors
from triptych.client.fields import (
    ChatFields,
    CompletionFields,
    Messages,
    OnePrompt,
    Prompt,
    TemplateFields,
)
from triptych.client.replies import ChatChunk, ChatReply, Completion, ServedModel, Tokens
from triptych.client.retries import DEFAULT_RETRIES, Retries
from triptych.client.scores import LabelScore, Score
from triptych.client.streams import Stream
from triptych.errors import TriptychError
from triptych.wire import Generated, GenerateDelta, GenerateRequest

_T = TypeVar("_T")

_CONNECT_TIMEOUT_S = 5.0
#: Connections that stay open between requests.
_NUM_KEPT = 64


class Client(Closing):
    """One server: the gateway, or a panel for the endpoints that it has. Safe between threads.

    Every method raises the server's own error from ``triptych.errors``.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        timeout_s: float | None = 600.0,
        retries: Retries = DEFAULT_RETRIES,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """A client of the server at ``url`` (without ``/v1``); nothing is sent yet.

        Args:
            url: where the server is.
            api_key: the gateway's key, or a panel's hop secret.
            timeout_s: longest silence of the server: all the time of a whole answer; a stream is
                silent for 15 seconds at most.
            retries: what happens on a 429 or a 503, and where nobody listens.
            tls: whom to trust; None: the usual authorities.
        """
        self._server = url.rstrip("/")
        self._retries = retries
        self._http = httpx.Client(**http_options(self._server, api_key, timeout_s, tls))

    def chat(self, messages: Messages, **fields: Unpack[ChatFields]) -> ChatReply:
        return self._send(calls.chat(messages, fields))

    def stream_chat(self, messages: Messages, **fields: Unpack[ChatFields]) -> Stream[ChatChunk]:
        return Stream(self._parts(calls.stream_chat(messages, fields)))

    def complete(self, prompt: Prompt, **fields: Unpack[CompletionFields]) -> Completion:
        return self._send(calls.complete(prompt, fields))

    def stream_complete(
        self, prompt: Prompt, **fields: Unpack[CompletionFields]
    ) -> Stream[Completion]:
        return Stream(self._parts(calls.stream_complete(prompt, fields)))

    def score(self, prompt: OnePrompt, *, top: int = 0) -> Score:
        """Every token of ``prompt``, with its ``top`` best candidates; nothing is generated."""
        return self.score_batch([prompt], top=top)[0]

    def score_batch(self, prompts: Sequence[OnePrompt], *, top: int = 0) -> list[Score]:
        """``score`` of at most 1,024 prompts, all texts or all ids, in one request."""
        return self._send(scores.score(prompts, top))

    def score_labels(self, prompt: OnePrompt, labels: Sequence[OnePrompt]) -> list[LabelScore]:
        """How likely each of ``labels`` is behind ``prompt``; see ``scores.score_labels``."""
        return self._run(scores.score_labels(prompt, labels))

    def tokenize(self, text: str, *, add_special_tokens: bool = True) -> Tokens:
        return self._send(calls.tokenize(text, add_special_tokens=add_special_tokens))

    def tokenize_chat(self, messages: Messages, **fields: Unpack[TemplateFields]) -> Tokens:
        return self._send(calls.tokenize_chat(messages, fields))

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return self._send(calls.detokenize(token_ids))

    def models(self) -> list[ServedModel]:
        return self._send(calls.models())

    def render_chat(self, messages: Messages, **fields: Unpack[ChatFields]) -> GenerateRequest:
        return self._send(panels.render_chat(messages, fields))

    def render_completion(
        self, prompt: Prompt, **fields: Unpack[CompletionFields]
    ) -> list[GenerateRequest]:
        return self._send(panels.render_completion(prompt, fields))

    def generate(self, request: GenerateRequest) -> Generated:
        return self._send(panels.generate(request))

    def stream_generate(self, request: GenerateRequest) -> Stream[GenerateDelta]:
        return Stream(self._parts(panels.stream_generate(request)))

    def derender_chat(
        self, answer: Generated, messages: Messages, **fields: Unpack[ChatFields]
    ) -> ChatReply:
        return self._send(panels.derender_chat(answer, messages, fields))

    def derender_completion(
        self, answers: Sequence[Generated], prompt: Prompt, **fields: Unpack[CompletionFields]
    ) -> Completion:
        return self._send(panels.derender_completion(answers, prompt, fields))

    def close(self) -> None:
        self._http.close()

    def _run(self, plan: Plan[_T]) -> _T:
        answer = None
        while True:
            try:
                call = plan.send(answer)
            except StopIteration as end:
                result: _T = end.value
                return result
            answer = self._send(call)

    def _send(self, call: Call[_T]) -> _T:
        with http_errors(self._server), closing(self._open(call)) as response:
            return call.read(response.read())

    def _parts(self, call: Call[_T]) -> Generator[_T, None, None]:
        events = EventReader()
        with http_errors(self._server), closing(self._open(call)) as response:
            for part in response.iter_bytes():
                yield from map(call.read, events.feed(part))
        events.end()

    def _open(self, call: Call[Any]) -> httpx.Response:
        """The answer's head; from here on nothing is tried again."""
        attempts = self._retries.begin()
        while True:
            try:
                return self._try(call)
            except TriptychError as error:
                wait_s = attempts.wait_s(error)
            time.sleep(wait_s)

    def _try(self, call: Call[Any]) -> httpx.Response:
        with http_errors(self._server):
            request = self._http.build_request(call.method, call.path, content=call.body)
            response = self._http.send(request, stream=True)
            if response.is_success:
                return response
            with closing(response):
                body, retry_after = response.read(), response.headers.get("retry-after")
                raise error_of_answer(response.status_code, body, retry_after)


def http_options(
    server: str, api_key: str | None, timeout_s: float | None, tls: ssl.SSLContext | None
) -> dict[str, Any]:
    """The arguments of httpx's clients."""
    headers = {"content-type": "application/json"}
    if api_key is not None:
        headers["authorization"] = f"Bearer {api_key}"
    return {
        "base_url": server,
        "headers": headers,
        "timeout": httpx.Timeout(timeout_s, connect=_CONNECT_TIMEOUT_S),
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=_NUM_KEPT),
        "verify": True if tls is None else tls,
    }
