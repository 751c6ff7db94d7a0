"""A generate worker that gets a tokenizer's vocabulary when it needs it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from triptych.errors import UnavailableError, VocabularyNeededError
from triptych.mailbox import Taker
from triptych.wire import GenerateDelta, GenerateRequest, ModelInfo
from triptych_gateway.links import VocabularySource, Worker


class WithVocabulary:
    """A generate link over one worker. Structured outputs need a vocabulary once per worker.

    The worker says when it lacks one, so nothing here remembers who has which, and a worker that
    was restarted or has dropped it gets it again.
    """

    def __init__(self, worker: Worker, source: VocabularySource) -> None:
        self._worker = worker
        self._source = source
        self._sending = asyncio.Lock()
        self._num_sent = 0

    async def generate(
        self, request: GenerateRequest, taker: Taker | None = None
    ) -> AsyncGenerator[GenerateDelta, None]:
        num_sent = self._num_sent
        try:
            async with contextlib.aclosing(self._worker.generate(request, taker)) as deltas:
                async for delta in deltas:
                    yield delta
                return
        except VocabularyNeededError:  # raised before the first delta
            await self._send(request.tokenizer_fingerprint, num_sent)
        async with contextlib.aclosing(self._worker.generate(request, taker)) as deltas:
            async for delta in deltas:
                yield delta

    async def info(self) -> ModelInfo:
        return await self._worker.info()

    async def _send(self, fingerprint: str | None, num_sent: int) -> None:
        """Send the vocabulary, unless another request has since this one was refused.

        Raises:
            UnavailableError: derender has another tokenizer than the one that made the ids.
        """
        async with self._sending:
            if self._num_sent > num_sent:
                return
            vocabulary = await self._source.vocabulary()
            if vocabulary.fingerprint != fingerprint:
                raise UnavailableError(
                    f"render has tokenizer {fingerprint}, derender {vocabulary.fingerprint}; "
                    f"structured outputs need the same one",
                    retry_after_s=1,
                )
            await self._worker.put_vocabulary(vocabulary)
            self._num_sent += 1
