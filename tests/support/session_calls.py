"""The gateway's end of a session's call, and what it was told."""

import asyncio
from dataclasses import dataclass, field

from triptych.errors import UnavailableError
from triptych_gateway.session_call import SessionCall, SessionDoor


@dataclass(slots=True)
class Owner:
    """Keeps what it is told; sends ``messages`` as there is room."""

    messages: list[bytes] = field(default_factory=list)
    received: list[bytes] = field(default_factory=list)
    call: SessionCall | None = None
    end: "asyncio.Future[UnavailableError]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def open(self, door: SessionDoor) -> None:
        self.call = door.open(self)

    def message_came(self, message: bytes) -> None:
        self.received.append(message)

    def writable(self) -> None:
        while self.call is not None and self.call.is_writable and self.messages:
            self.call.write(self.messages.pop(0))

    def ended(self, error: UnavailableError) -> None:
        self.end.set_result(error)


async def end_of(owner: Owner) -> str:
    async with asyncio.timeout(20):
        return (await owner.end).message


async def until_came(owner: Owner, num_messages: int) -> None:
    async with asyncio.timeout(60):
        while len(owner.received) < num_messages:
            assert not owner.end.done(), owner.end
            await asyncio.sleep(0.005)
