"""All requests of one caller in one call: what is rendered meanwhile is answered together."""

import asyncio
from collections.abc import Callable
from functools import partial

from triptych.convert import rendered_to_proto
from triptych.convert_packed import error_to_proto
from triptych.drain import Drain
from triptych.errors import InvalidRequestError, TriptychError
from triptych.offload import is_large_body
from triptych.request_ids import accept_request_id
from triptych.rpc_options import MAX_MESSAGE_BYTES
from triptych.sessions import STEP_BYTES, SessionRequests, first_part
from triptych.v1 import generate_pb2, render_pb2
from triptych_render.renderer import Renderer

_Answer = render_pb2.RenderAnswer

#: Bytes of one rendered request.
_MAX_ANSWER_BYTES = MAX_MESSAGE_BYTES // 2


class RenderSession:
    """A ``Session`` over a renderer."""

    def __init__(self, renderer: Renderer, drain: Drain, on_news: Callable[[], None]) -> None:
        """``on_news`` is called when there may be a step to take."""
        self._renderer = renderer
        self._answers: list[_Answer] = []
        self._errors: list[generate_pb2.RequestError] = []
        self._on_news = on_news
        self.requests = SessionRequests(drain, self._fail)

    def apply(self, commands: render_pb2.RenderCommands) -> None:
        for each in commands.submits:
            self._submit(each)
        for key in commands.aborts:
            self.requests.end(key)

    def take_step(self) -> render_pb2.RenderStep | None:
        size = render_pb2.RenderAnswer.ByteSize
        answers, self._answers = first_part(self._answers, STEP_BYTES, size)
        errors, self._errors = self._errors, []
        if not answers and not errors:
            return None
        return render_pb2.RenderStep(answers=answers, errors=errors)

    def _submit(self, submit: render_pb2.SubmitRender) -> None:
        request_id = accept_request_id(submit.request.request_id or None)
        if not is_large_body(submit.request.body):  # over before anything could end it
            self.requests.run_at_once(
                submit.key,
                lambda: self._keep(self._rendered(submit, request_id)),
                request_id=request_id,
                trace=submit.trace,
            )
            return
        try:
            self.requests.start(
                submit.key,
                submit.timeout_s,
                partial(self._run, submit, request_id),
                request_id=request_id,
                trace=submit.trace,
            )
        except TriptychError as error:
            self._fail(submit.key, error)

    async def _run(self, submit: render_pb2.SubmitRender, request_id: str) -> None:
        self._keep(await asyncio.to_thread(self._rendered, submit, request_id))

    def _rendered(self, submit: render_pb2.SubmitRender, request_id: str) -> _Answer:
        renderer = self._renderer
        render = renderer.render_completion if submit.is_completion else renderer.render_chat
        response = rendered_to_proto(render(submit.request.body, request_id=request_id))
        return _Answer(key=submit.key, response=response)

    def _keep(self, answered: _Answer) -> None:
        if (size := answered.ByteSize()) > _MAX_ANSWER_BYTES:
            raise InvalidRequestError(
                f"the rendered request has {size:,} bytes, limit is {_MAX_ANSWER_BYTES:,}"
            )
        self._answers.append(answered)
        self._on_news()

    def _fail(self, key: int, error: TriptychError) -> None:
        self._errors.append(error_to_proto(key, error))
        self._on_news()
