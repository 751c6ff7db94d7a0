"""All requests of this gateway at one render, in one call."""

import asyncio
import itertools

from triptych import tracing
from triptych.convert import rendered_from_proto
from triptych.convert_packed import error_from_proto
from triptych.errors import BodyTooLargeError, DeadlineError, TriptychError, UnavailableError
from triptych.reply import Endpoint, Rendered
from triptych.sessions import MAX_COMMAND_BYTES, STEP_BYTES, first_part
from triptych.v1 import render_pb2
from triptych_gateway.panel_session import PanelSession
from triptych_gateway.session_call import SessionDoor

_Answer = asyncio.Future[render_pb2.RenderResponse]


class RenderSession(PanelSession[render_pb2.RenderStep]):
    """Opened by the first request, and again by the first one after it broke."""

    def __init__(self, door: SessionDoor) -> None:
        super().__init__(door, render_pb2.RenderStep)
        self._keys = itertools.count(1)
        self._submits: list[render_pb2.SubmitRender] = []
        self._aborts: list[int] = []
        self._answers: dict[int, _Answer] = {}  # of requests that run at render

    async def render(
        self, endpoint: Endpoint, body: bytes, request_id: str, *, timeout_s: float
    ) -> Rendered:
        """What the request is for generate; cancelling it aborts it.

        Raises:
            TriptychError: what is wrong with it; UnavailableError when the session broke.
        """
        submit = render_pb2.SubmitRender(
            key=next(self._keys),
            request=render_pb2.RenderRequest(body=body, request_id=request_id),
            is_completion=endpoint == "completions",
            timeout_s=timeout_s,
            trace=dict(tracing.carried()),
        )
        if (size := submit.ByteSize()) > MAX_COMMAND_BYTES:
            raise BodyTooLargeError(
                f"the request has {size:,} bytes for render, limit is {MAX_COMMAND_BYTES:,}"
            )
        loop = asyncio.get_running_loop()
        answer: _Answer = loop.create_future()
        self._answers[submit.key] = answer
        self._submits.append(submit)
        self._wake()
        late = DeadlineError(f"{self._name} did not answer in time")
        timer = loop.call_later(timeout_s, _fail, answer, late)
        try:
            return rendered_from_proto(await answer)
        finally:
            timer.cancel()
            if self._answers.pop(submit.key, None) is not None:
                self._aborts.append(submit.key)
                self._wake()

    def _take_commands(self) -> render_pb2.RenderCommands | None:
        """What waits, or its first part; nothing is aborted before it was submitted."""
        if not (self._submits or self._aborts):
            return None
        size = render_pb2.SubmitRender.ByteSize
        submits, self._submits = first_part(self._submits, STEP_BYTES, size)
        aborts: list[int] = []
        if not self._submits:
            aborts, self._aborts = self._aborts, []
        return render_pb2.RenderCommands(submits=submits, aborts=aborts)

    def _take_step(self, step: render_pb2.RenderStep) -> None:
        for each in step.answers:
            if (answer := self._answers.pop(each.key, None)) is not None and not answer.done():
                answer.set_result(each.response)
        for error in step.errors:
            if (answer := self._answers.pop(error.key, None)) is not None:
                _fail(answer, error_from_proto(error))

    def _end(self, error: UnavailableError) -> None:
        """The call ended: its requests fail, and the next one opens another."""
        answers, self._answers = self._answers, {}
        self._submits, self._aborts = [], []
        for answer in answers.values():
            _fail(answer, error)


def _fail(answer: _Answer, error: TriptychError) -> None:
    if not answer.done():
        answer.set_exception(error)
