"""All streamed replies of one caller in one call: each message's deltas are answered together."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from triptych.convert import spec_from_bytes
from triptych.convert_packed import error_to_proto, unpack_deltas
from triptych.drain import Drain
from triptych.errors import InternalError, InvalidRequestError, TriptychError
from triptych.reply import Fed
from triptych.rpc_options import MAX_MESSAGE_BYTES
from triptych.sessions import STEP_BYTES, SessionRequests, first_part
from triptych.v1 import derender_pb2, generate_pb2
from triptych.wire import GenerateDelta
from triptych_derender.derenderer import Derenderer, ReplyStream

#: Bytes of chunks that one delta may give.
_MAX_ANSWER_BYTES = MAX_MESSAGE_BYTES // 2

_log = logging.getLogger(__name__)


class DerenderSession:
    """A ``Session`` over a derenderer, which keeps the state of each open reply."""

    def __init__(self, derenderer: Derenderer, drain: Drain, on_news: Callable[[], None]) -> None:
        """``on_news`` is called when there may be a step to take."""
        self._derenderer = derenderer
        self._replies: dict[int, ReplyStream] = {}
        self._answers: list[tuple[int, Fed]] = []
        self._errors: list[generate_pb2.RequestError] = []
        self._on_news = on_news
        self.requests = SessionRequests(drain, self._fail)

    def apply(self, commands: derender_pb2.DerenderCommands) -> None:
        for each in commands.opens:
            self._open(each)
        deltas = unpack_deltas(commands.deltas)
        if len(deltas) != len(commands.prompt_indexes):
            raise InvalidRequestError(
                f"{len(commands.prompt_indexes)} prompt_indexes for {len(deltas)} deltas"
            )
        for (key, delta), prompt_index in zip(deltas, commands.prompt_indexes, strict=True):
            self._feed(key, prompt_index, delta)
        for key in commands.closes:
            self._replies.pop(key, None)
            self.requests.end(key)

    def take_step(self) -> derender_pb2.DerenderStep | None:
        answers, self._answers = first_part(
            self._answers, STEP_BYTES, lambda answer: _num_bytes(answer[1])
        )
        errors, self._errors = self._errors, []
        if not answers and not errors:
            return None
        return derender_pb2.DerenderStep(
            keys=[key for key, _ in answers],
            num_chunks=[len(fed.chunks) for _, fed in answers],
            chunks=[chunk for _, fed in answers for chunk in fed.chunks],
            num_done=[len(fed.done_prompts) for _, fed in answers],
            done_prompts=[prompt for _, fed in answers for prompt in fed.done_prompts],
            are_done=[fed.is_done for _, fed in answers],
            errors=errors,
        )

    def _open(self, message: derender_pb2.OpenReply) -> None:
        start = message.start
        try:
            reply = self._derenderer.open(
                spec_from_bytes(start.reply_spec),
                request_id=start.request_id,
                created=start.created,
                prompts=[list(prompt.token_ids) for prompt in start.prompts],
            )
            self.requests.start(
                message.key,
                message.timeout_s,
                partial(self._keep, message.key),
                request_id=start.request_id,
                trace=message.trace,
            )
        except TriptychError as error:
            self._fail(message.key, error)
        else:
            self._replies[message.key] = reply

    async def _keep(self, key: int) -> None:
        """A reply's whole life: until it is ended."""
        try:
            await asyncio.Event().wait()
        finally:
            self._replies.pop(key, None)

    def _feed(self, key: int, prompt_index: int, delta: GenerateDelta) -> None:
        """Answer a delta; one of a reply that has ended is dropped, since its caller was told."""
        reply = self._replies.get(key)
        if reply is None:
            return
        try:
            fed = reply.feed(prompt_index, delta)
            if (size := _num_bytes(fed)) > _MAX_ANSWER_BYTES:
                raise InvalidRequestError(f"{size:,} bytes of chunks, limit {_MAX_ANSWER_BYTES:,}")
        except TriptychError as error:
            self._end(key, error)
        except Exception:  # noqa: BLE001  # the request edge
            _log.exception("a reply of a session failed")
            self._end(key, InternalError("internal error; see the server's log"))
        else:
            self._answers.append((key, fed))
            self._on_news()

    def _end(self, key: int, error: TriptychError) -> None:
        del self._replies[key]
        self.requests.end(key)
        self._fail(key, error)

    def _fail(self, key: int, error: TriptychError) -> None:
        self._errors.append(error_to_proto(key, error))
        self._on_news()


def _num_bytes(fed: Fed) -> int:
    return sum(map(len, fed.chunks))
