"""All requests of this gateway at one generate worker, in one call."""

import asyncio
import itertools
from collections.abc import AsyncGenerator

from triptych import tracing
from triptych.convert import request_to_proto
from triptych.convert_packed import error_from_proto, unpack_deltas
from triptych.errors import BodyTooLargeError, DeadlineError, UnavailableError
from triptych.mailbox import Mailbox, Taker
from triptych.sessions import MAX_COMMAND_BYTES, STEP_BYTES, first_part
from triptych.v1 import generate_pb2
from triptych.wire import GenerateDelta, GenerateRequest
from triptych_gateway.panel_session import PanelSession
from triptych_gateway.session_call import SessionDoor

#: Tokens of one request that may wait for its reader; beyond that the worker keeps them.
HOLD_ABOVE = 64


class GenerateSession(PanelSession[generate_pb2.GenerateStep]):
    """Opened by the first request, and again by the first one after it broke."""

    def __init__(self, door: SessionDoor) -> None:
        super().__init__(door, generate_pb2.GenerateStep)
        self._keys = itertools.count(1)
        self._commands: list[generate_pb2.GenerateCommand] = []
        self._mailboxes: dict[int, Mailbox] = {}  # of requests that run at the worker
        self._held: set[int] = set()

    async def deltas(
        self, request: GenerateRequest, *, timeout_s: float, taker: Taker | None = None
    ) -> AsyncGenerator[GenerateDelta, None]:
        """The deltas of one request that ``taker`` does not take; closing them aborts it.

        Raises:
            TriptychError: what ended the request; UnavailableError when the session broke.
        """
        submit = generate_pb2.SubmitCommand(
            key=next(self._keys),
            request=request_to_proto(request),
            timeout_s=timeout_s,
            trace=dict(tracing.carried()),
        )
        _check_size(submit)
        mailbox = self._submit(submit, request, taker)
        late = DeadlineError(f"{self._name} did not answer in time")
        timer = asyncio.get_running_loop().call_later(timeout_s, mailbox.fail, late)
        try:
            while (delta := await mailbox.get()) is not None:
                if submit.key in self._held:
                    self._release(submit.key)
                yield delta
        finally:
            timer.cancel()
            self._leave(submit.key)

    def _submit(
        self,
        submit: generate_pb2.SubmitCommand,
        request: GenerateRequest,
        taker: Taker | None,
    ) -> Mailbox:
        first = request.choice_index
        choices = range(first, first + request.sampling_params.n)
        request_id = request.request_id or ""
        mailbox = Mailbox(request_id=request_id, choices=choices, taker=taker)
        self._mailboxes[submit.key] = mailbox
        self._send(generate_pb2.GenerateCommand(submit=submit))
        return mailbox

    def _leave(self, key: int) -> None:
        self._held.discard(key)
        if self._mailboxes.pop(key, None) is not None:
            self._send(generate_pb2.GenerateCommand(abort=key))

    def _release(self, key: int) -> None:
        self._held.discard(key)
        self._send(generate_pb2.GenerateCommand(release=key))

    def _send(self, command: generate_pb2.GenerateCommand) -> None:
        self._commands.append(command)
        self._wake()

    def _take_commands(self) -> generate_pb2.GenerateCommands | None:
        size = generate_pb2.GenerateCommand.ByteSize
        commands, self._commands = first_part(self._commands, STEP_BYTES, size)
        return generate_pb2.GenerateCommands(commands=commands) if commands else None

    def _take_step(self, step: generate_pb2.GenerateStep) -> None:
        for key, delta in unpack_deltas(step.deltas, self._request_id):
            if (mailbox := self._mailboxes.get(key)) is not None:
                self._put(key, mailbox, delta)
        for each in step.errors:
            if (mailbox := self._mailboxes.pop(each.key, None)) is not None:
                mailbox.fail(error_from_proto(each))

    def _put(self, key: int, mailbox: Mailbox, delta: GenerateDelta) -> None:
        if mailbox.end is not None:  # late: it is aborted as soon as its reader has heard
            return
        mailbox.put(delta)
        if mailbox.end is not None:
            del self._mailboxes[key]
        elif mailbox.num_waiting > HOLD_ABOVE and key not in self._held:
            self._held.add(key)
            self._send(generate_pb2.GenerateCommand(hold=key))

    def _request_id(self, key: int) -> str:
        mailbox = self._mailboxes.get(key)
        return mailbox.request_id if mailbox is not None else ""

    def _end(self, error: UnavailableError) -> None:
        """The call ended: its requests fail, and the next one opens another."""
        mailboxes, self._mailboxes = self._mailboxes, {}
        self._commands.clear()
        self._held.clear()
        for mailbox in mailboxes.values():
            mailbox.fail(error)


def _check_size(submit: generate_pb2.SubmitCommand) -> None:
    if (size := submit.ByteSize()) > MAX_COMMAND_BYTES:
        raise BodyTooLargeError(
            f"the request has {size:,} bytes for generate, limit is {MAX_COMMAND_BYTES:,}"
        )
