"""All requests of one caller in one call: one message per step with the deltas of all of them."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol

import msgspec

from triptych.convert import request_from_proto
from triptych.convert_packed import error_to_proto, pack_deltas
from triptych.drain import Drain
from triptych.errors import InvalidRequestError, TriptychError
from triptych.mailbox import Mailbox, size_of
from triptych.request_ids import accept_request_id
from triptych.sessions import MAX_DELTA, STEP_BYTES, SessionRequests
from triptych.v1 import generate_pb2
from triptych.wire import GenerateDelta, GenerateRequest

#: What a step's deltas may hold before the others wait for the next message.
_STEP_SIZE = STEP_BYTES // 14


class Service(Protocol):
    """Who runs the requests."""

    def running(
        self, request: GenerateRequest, on_news: Callable[[], None] | None = None
    ) -> AbstractAsyncContextManager[Mailbox]: ...


class GenerateSession:
    """A ``Session`` over a generate service.

    A request that its caller holds waits in its mailbox, merged; the others go on.
    """

    def __init__(self, service: Service, drain: Drain, on_news: Callable[[], None]) -> None:
        """``on_news`` is called when there may be a step to take."""
        self._service = service
        self._mailboxes: dict[int, Mailbox] = {}
        self._ready: dict[int, None] = {}  # keys with something to take, the longest waiting first
        self._held: set[int] = set()
        self._errors: list[generate_pb2.RequestError] = []
        self._on_news = on_news
        self.requests = SessionRequests(drain, self._fail)

    def apply(self, commands: generate_pb2.GenerateCommands) -> None:
        for command in commands.commands:
            kind = command.WhichOneof("command")
            if kind == "submit":
                self._submit(command.submit)
            elif kind == "abort":
                self.requests.end(command.abort)
            elif kind == "hold" and command.hold in self._mailboxes:  # else it has ended meanwhile
                self._held.add(command.hold)
            elif kind == "release":
                self._held.discard(command.release)
                self._tell(command.release)

    def take_step(self) -> generate_pb2.GenerateStep | None:
        deltas = self._take_deltas()
        errors, self._errors = self._errors, []
        if not deltas and not errors:
            return None
        return generate_pb2.GenerateStep(
            deltas=pack_deltas(deltas) if deltas else None, errors=errors
        )

    def _submit(self, submit: generate_pb2.SubmitCommand) -> None:
        work = partial(self._run, submit.key, submit.request)
        try:
            self.requests.start(
                submit.key,
                submit.timeout_s,
                work,
                request_id=submit.request.request_id,
                trace=submit.trace,
            )
        except TriptychError as error:
            self._fail(submit.key, error)

    async def _run(self, key: int, message: generate_pb2.GenerateRequest) -> None:
        request_id = accept_request_id(message.request_id or None)
        request = msgspec.structs.replace(request_from_proto(message), request_id=request_id)
        async with self._service.running(request, partial(self._tell, key)) as mailbox:
            self._mailboxes[key] = mailbox
            if mailbox.has_waiting or mailbox.has_ended:  # told before it could be found
                self._tell(key)
            try:
                await mailbox.until_read_out()
            finally:
                del self._mailboxes[key]
                self._held.discard(key)

    def _take_deltas(self) -> list[tuple[int, GenerateDelta]]:
        deltas, size = [], 0
        for key in [each for each in self._ready if each not in self._held]:
            if size > _STEP_SIZE:
                break
            del self._ready[key]
            mailbox = self._mailboxes.get(key)
            delta = mailbox.take() if mailbox is not None else None
            if mailbox is None or delta is None:
                continue
            if mailbox.has_waiting:
                self._ready[key] = None
            delta_size = size_of(delta)
            if delta_size > MAX_DELTA:
                self._refuse(key, delta_size)
                continue
            deltas.append((key, delta))
            size += delta_size
        return deltas

    def _refuse(self, key: int, size: int) -> None:
        message = f"one step gave {size:,} token ids and candidates, a message holds {MAX_DELTA:,}"
        self.requests.end(key)
        self._fail(key, InvalidRequestError(message))

    def _fail(self, key: int, error: TriptychError) -> None:
        self._errors.append(error_to_proto(key, error))
        self._on_news()

    def _tell(self, key: int) -> None:
        self._ready[key] = None
        self._on_news()
