"""The gateway's half of a session: one call to a panel that carries all requests."""

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from google.protobuf.message import Message

from triptych.errors import UnavailableError
from triptych_gateway.session_call import SessionCall, SessionDoor

_StepT = TypeVar("_StepT", bound=Message)

_log = logging.getLogger(__name__)


class PanelSession(ABC, Generic[_StepT]):
    """All requests of this gateway at one panel, in one bidirectional call.

    What is sent goes out in batches. The first request opens the call, and opens it again after it
    ended: by an error, by the server, or by ``close``.
    """

    def __init__(self, door: SessionDoor, step: type[_StepT]) -> None:
        """``step``: the message that the panel sends."""
        self._door = door
        self._name = door.name
        self._step = step
        self._call: SessionCall | None = None
        self._is_due = False

    def close(self) -> None:
        if self._call is not None:
            self._break()

    @abstractmethod
    def _take_commands(self) -> Message | None:
        """What waits to be sent, or its first part; None when nothing does."""

    @abstractmethod
    def _take_step(self, step: _StepT) -> None:
        """Hand on what came."""

    @abstractmethod
    def _end(self, error: UnavailableError) -> None:
        """The call ended: its requests fail with ``error``."""

    def _wake(self) -> None:
        """There are commands to take; those of one turn of the event loop go out together."""
        if self._call is None:
            self._call = self._door.open(self)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.writable)

    def writable(self) -> None:
        """Send what waits, as long as there is room."""
        self._is_due = False
        call = self._call
        try:
            while call and call.is_writable and (commands := self._take_commands()) is not None:
                call.write(commands.SerializeToString())
        except Exception:  # noqa: BLE001  # nothing would be sent any more
            _log.exception("the session with %s broke", self._name)
            self._break()

    def message_came(self, message: bytes) -> None:
        try:
            self._take_step(self._step.FromString(message))
        except Exception:  # noqa: BLE001  # a stranger may have sent it
            _log.exception("the session with %s broke", self._name)
            self._break()

    def ended(self, error: UnavailableError) -> None:
        self._call = None
        self._end(error)

    def _break(self) -> None:
        if self._call is not None:
            self._call.cancel()
        self.ended(UnavailableError(f"the session with {self._name} broke", retry_after_s=1))
