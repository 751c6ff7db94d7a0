"""A generate link over several workers: an answer goes on at another when its worker fails."""

import contextlib
import functools
from collections.abc import AsyncGenerator, Set

import msgspec

from triptych.errors import TriptychError, UnavailableError
from triptych.mailbox import Taker
from triptych.wire import GenerateDelta, GenerateRequest, ModelInfo
from triptych_gateway.attempts import NO_PATIENCE, Attempts, Patience
from triptych_gateway.balance import by_prefix, least_loaded, prefix_key
from triptych_gateway.links import GenerateLink
from triptych_gateway.merge import MergedDeltas
from triptych_gateway.partial import Partial
from triptych_gateway.replica import Replica
from triptych_gateway.replicas import ReplicaSet

_Worker = Replica[GenerateLink]


class FailoverGenerate:
    """Generates at the worker that the prompt's beginning names, and resumes at another.

    An answer that is cut off, by a worker that dies, hangs or drains, goes on with ``resume_from``,
    a request for each choice, at a worker of the same kind. Joined, the deltas are those of an
    answer never cut, to the bit (docs/fleet.md). Requests must have a seed.

    Args:
        workers: those to choose from.
        patience: how long an answer waits for a worker.
    """

    def __init__(self, workers: ReplicaSet[GenerateLink], patience: Patience) -> None:
        self._workers = workers
        self._patience = patience

    async def generate(
        self, request: GenerateRequest, taker: Taker | None = None
    ) -> AsyncGenerator[GenerateDelta, None]:
        whole = self._answer(request)
        async with contextlib.aclosing(whole.deltas(taker)) as deltas:
            async for delta in deltas:
                yield delta
        if not whole.partial.num_unfinished:
            return
        rests = [self._answer(rest, whole.begun_at) for rest in whole.partial.rests()]
        async with contextlib.aclosing(MergedDeltas([rest.deltas() for rest in rests])) as merged:
            async for _, delta in merged:
                yield delta

    async def info(self) -> ModelInfo:
        """What a worker that is up said last.

        Raises:
            UnavailableError: none is up.
        """
        attempts = Attempts(self._workers, NO_PATIENCE)
        info = (await attempts.next()).info
        assert info is not None, "a worker is used once it has said what it is"
        return info

    def _answer(self, request: GenerateRequest, begun_at: ModelInfo | None = None) -> "_Answer":
        return _Answer(self._workers, request, patience=self._patience, begun_at=begun_at)


class _Answer:
    """One request's answer, from as many workers as it takes.

    ``begun_at``: what the worker said of itself that gave its beginning.
    """

    def __init__(
        self,
        workers: ReplicaSet[GenerateLink],
        request: GenerateRequest,
        *,
        patience: Patience,
        begun_at: ModelInfo | None,
    ) -> None:
        self.partial = Partial(request, has_begun=begun_at is not None)
        self.begun_at = begun_at
        self._workers = workers
        self._key = prefix_key(request)
        self._attempts = Attempts(
            workers,
            patience,
            choose=self._choose,
            fits=self._fits,
            has_begun=begun_at is not None,
        )

    async def deltas(self, taker: Taker | None = None) -> AsyncGenerator[GenerateDelta, None]:
        """The deltas, until each choice is finished or several were cut: those go on one by one.

        Raises:
            TriptychError: the request's own fault, or nobody can take it (over).
        """
        partial, num_choices = self.partial, self.partial.request.sampling_params.n
        while partial.num_unfinished and not (partial.has_begun and num_choices > 1):
            is_rest = partial.has_begun
            request = partial.rests()[0] if is_rest else partial.request
            worker = await self._attempts.next()
            self._workers.num_resumes += is_rest
            take = None if taker is None else functools.partial(self._take, taker, worker)
            with worker.lease(num_choices) as lease:
                try:
                    async with contextlib.aclosing(worker.link.generate(request, take)) as deltas:
                        pull = functools.partial(anext, deltas, None)
                        while (delta := await lease.wait(pull)) is not None:
                            self._note(delta, worker)
                            yield _without_cached(delta) if is_rest else delta
                    if partial.num_unfinished:
                        raise UnavailableError(
                            f"generate at {worker.address} ended the answer early", retry_after_s=1
                        )
                except TriptychError as error:
                    self._attempts.failed(worker, error)
                    if self.begun_at is not None and not self.begun_at.can_resume:
                        raise  # nobody will ever be able to go on with it

    def _take(self, taker: Taker, worker: _Worker, delta: GenerateDelta) -> bool:
        """Whether ``taker`` takes ``delta``; not what ``deltas`` would change."""
        if delta.cached_tokens or not taker(delta):
            return False
        worker.was_heard()
        self._note(delta, worker)
        return True

    def _note(self, delta: GenerateDelta, worker: _Worker) -> None:
        self.partial.take(delta)
        self._attempts.progressed()
        if self.begun_at is None:
            self.begun_at = worker.info

    def _choose(self, workers: Set[_Worker]) -> _Worker:
        if self._key is None:
            return least_loaded(workers)
        return by_prefix(self._workers.ring, workers, self._key)

    def _fits(self, worker: _Worker) -> bool:
        """It may go on with the answers of workers that compute the same bits."""
        if self.begun_at is None:
            return True
        other = worker.info
        return other is not None and other.can_resume and _kind(other) == _kind(self.begun_at)


def _kind(info: ModelInfo) -> tuple[str, int, int, str, str, bool]:
    device = info.device.partition(":")[0]
    return info.model, info.max_model_len, info.vocab_size, info.dtype, device, info.can_resume


def _without_cached(delta: GenerateDelta) -> GenerateDelta:
    """``cached_tokens`` are the prompt's, told once; those of a rest are not the client's."""
    return msgspec.structs.replace(delta, cached_tokens=0) if delta.cached_tokens else delta
