"""The generate service for asyncio: admission, one stream of deltas per request, abort, health."""

import asyncio
import contextlib
import itertools
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from triptych.errors import (
    InternalError,
    ModelNotFoundError,
    OverloadedError,
    TriptychError,
    UnavailableError,
)
from triptych.mailbox import Mailbox
from triptych.sampling import Limits, check_request
from triptych.version import VERSION
from triptych.wire import GenerateDelta, GenerateRequest, ModelInfo, Vocabulary, WorkerLoad
from triptych_generate.admission import end_at_cut, make_sequences
from triptych_generate.engine import Engine, Update
from triptych_generate.grammars import GrammarStore
from triptych_generate.metrics import EngineMetrics
from triptych_generate.options import EngineOptions
from triptych_generate.sequence import Sequence
from triptych_generate.setup import EngineParts, set_up
from triptych_generate.worker import Worker

_log = logging.getLogger(__name__)

#: How long a stop waits for the step that runs.
_STOP_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Requests that wait, sequences that run, KV blocks, and counts since the start.

    ``num_queried`` prompt tokens were looked up in the prefix cache, ``num_hit`` of them found.
    """

    num_waiting: int
    num_waiting_tokens: int
    num_running: int
    num_free_blocks: int
    num_blocks: int
    num_preemptions: int
    num_queried: int
    num_hit: int
    num_evictions: int

    @property
    def is_idle(self) -> bool:
        return not self.num_waiting and self.num_free_blocks == self.num_blocks


class GenerateService:
    """Serves requests from one engine. Methods run on the event loop that called ``start``.

    ``died`` is set when the step loop has ended by an error.
    """

    def __init__(self, parts: EngineParts, options: EngineOptions, worker: Worker) -> None:
        """``worker`` loaded the parts and will run the step loop."""
        self._parts = parts
        self._worker = worker
        self._options = options
        self.limits = Limits(
            vocab_size=parts.loaded.vocab_size,
            max_model_len=parts.max_model_len,
            max_logprobs=options.max_logprobs,
        )
        self._grammars = GrammarStore(
            vocab_size=parts.loaded.vocab_size,
            eos_token_ids=parts.loaded.eos_token_ids,
            limits=options.grammars,
        )
        self._keys = itertools.count()
        self._mailboxes: dict[int, Mailbox] = {}
        self._keys_by_id: dict[str, set[int]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False
        self.died = asyncio.Event()
        self.metrics = EngineMetrics()
        self._engine = Engine(
            parts.runner,
            parts.scheduler,
            deliver=self._deliver_threadsafe,
            on_death=self._die_threadsafe,
            metrics=self.metrics,
        )

    @classmethod
    def load(cls, options: EngineOptions) -> "GenerateService":
        """A service with a loaded and checked model. Takes seconds to minutes; blocks.

        Raises:
            SetupError: the model cannot be served.
        """
        worker = Worker("generate-engine")
        return cls(worker.submit(lambda: set_up(options)).result(), options, worker)

    def start(self) -> None:
        """Start the step loop; call it on the event loop that will serve."""
        self._loop = asyncio.get_running_loop()
        self._engine.start(self._worker)

    async def stop(self) -> None:
        """End every request with an error, then the step loop."""
        self._is_stopping = True
        self._fail_all(UnavailableError("the server is shutting down", retry_after_s=1))
        await self._grammars.close()
        await asyncio.to_thread(self._engine.stop, _STOP_TIMEOUT_S)

    @property
    def is_alive(self) -> bool:
        """The step loop runs, so requests can be served."""
        return self._engine.is_alive and not self._is_stopping

    def occupancy(self) -> Occupancy:
        """How busy the engine is; read while it runs, so figures may be of different steps."""
        scheduler = self._parts.scheduler
        return Occupancy(
            num_waiting=self._engine.num_waiting,
            num_waiting_tokens=self._engine.num_waiting_tokens,
            num_running=len(scheduler.running),
            num_free_blocks=scheduler.pool.num_free,
            num_blocks=scheduler.pool.num_blocks,
            num_preemptions=scheduler.num_preemptions,
            num_queried=scheduler.prefixes.num_queried,
            num_hit=scheduler.prefixes.num_hit,
            num_evictions=scheduler.pool.num_evictions,
        )

    @property
    def options(self) -> EngineOptions:
        return self._options

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self._parts.loaded.eos_token_ids

    def info(self) -> ModelInfo:
        return ModelInfo(
            model=self._options.served_model_name,
            max_model_len=self.limits.max_model_len,
            vocab_size=self.limits.vocab_size,
            dtype=self._options.dtype,
            device=self._options.device,
            max_logprobs=self.limits.max_logprobs,
            invariant=self._parts.invariant,
            load=self._load(),
            can_resume=True,
            version=VERSION,
        )

    def _load(self) -> WorkerLoad:
        now = self.occupancy()
        return WorkerLoad(
            num_running=now.num_running,
            num_waiting=now.num_waiting,
            num_free_blocks=now.num_free_blocks,
            num_blocks=now.num_blocks,
            num_steps=self.metrics.num_steps,
        )

    async def put_vocabulary(self, vocabulary: Vocabulary) -> bool:
        """Keep what a tokenizer's ids mean, for structured outputs; False when it is known.

        Raises:
            InvalidRequestError: it is not what its checksum says.
        """
        return await self._grammars.put_vocabulary(vocabulary)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateDelta, None]:
        """The deltas of one request; the last ones hold each choice's finish reason.

        Closing the generator aborts the request and frees its blocks before the next step.

        Raises:
            TriptychError: a refusal before the first delta, or the error that ended the request.
        """
        async with self.running(request) as mailbox:
            while (delta := await mailbox.get()) is not None:
                yield delta

    @contextlib.asynccontextmanager
    async def running(
        self, request: GenerateRequest, on_news: Callable[[], None] | None = None
    ) -> AsyncIterator[Mailbox]:
        """A request that runs, and where its deltas arrive; left before its end, it is aborted.

        ``on_news`` is called when there is something to ``take``, perhaps before this returns.

        Raises:
            TriptychError: a refusal.
        """
        self._check(request)
        key = next(self._keys)
        request_id = request.request_id or uuid.uuid4().hex
        sequences = make_sequences(
            request,
            request_key=key,
            max_model_len=self.limits.max_model_len,
            eos_token_ids=self._parts.loaded.eos_token_ids,
        )
        choices = [sequence.choice_index for sequence in sequences]
        mailbox = Mailbox(request_id=request_id, choices=choices, on_news=on_news)
        with self._kept(key, request_id, mailbox):
            if (end := end_at_cut(sequences[0])) is not None:
                mailbox.put(GenerateDelta(request_id=request_id, choices=[end]))
            elif request.sampling_params.structured_outputs is not None:
                await self._constrain(sequences, request, mailbox)
            if not mailbox.has_ended:
                self._engine.submit(sequences, since=mailbox.opened)
            yield mailbox

    def abort(self, request_id: str) -> bool:
        """End a request's waiter with ``abort`` at once; False when no such request runs."""
        running = [
            key
            for key in self._keys_by_id.get(request_id, ())
            if not self._mailboxes[key].has_ended
        ]
        for key in running:
            self._mailboxes[key].finish("abort")
            self._engine.abort(key)
        return bool(running)

    async def _constrain(
        self, sequences: list[Sequence], request: GenerateRequest, mailbox: Mailbox
    ) -> None:
        """Wait for the request's grammar, or its end. Meanwhile it counts as one that waits."""
        self._engine.expect(sequences)
        try:
            await mailbox.unless_ended(self._grammars.constrain(sequences, request))
        except TriptychError as error:
            self._engine.abort(sequences[0].request_key)
            mailbox.fail(error)
            raise

    def _check(self, request: GenerateRequest) -> None:
        served = self._options.served_model_name
        if request.model is not None and request.model != served:
            raise ModelNotFoundError(
                f"model {request.model} is not served here; {served} is", param="model"
            )
        check_request(request, self.limits)
        self._grammars.check(request)
        if not self.is_alive:
            raise UnavailableError("the generate engine is not running", retry_after_s=1)
        self._check_room(len(request.token_ids))

    def _check_room(self, num_tokens: int) -> None:
        """Refuse a request of ``num_tokens`` behind too many others; the first may always wait."""
        waiting, most = self._engine.num_waiting, self._options.max_waiting
        if waiting >= most:
            raise OverloadedError(f"{waiting} requests wait, limit is {most}", retry_after_s=1)
        tokens, most = (
            self._engine.num_waiting_tokens + num_tokens,
            self._options.max_waiting_tokens,
        )
        if waiting and tokens > most:
            raise OverloadedError(
                f"prompts of {tokens:,} tokens would wait, limit is {most:,}", retry_after_s=1
            )

    @contextlib.contextmanager
    def _kept(self, key: int, request_id: str, mailbox: Mailbox) -> Iterator[None]:
        """While the request's updates go to ``mailbox``; left before its end, it is aborted."""
        self._mailboxes[key] = mailbox
        self._keys_by_id.setdefault(request_id, set()).add(key)
        try:
            yield
        finally:
            del self._mailboxes[key]
            self._keys_by_id[request_id].discard(key)
            if not self._keys_by_id[request_id]:
                del self._keys_by_id[request_id]
            if not mailbox.has_ended:
                self._engine.abort(key)
            self.metrics.request_ended(mailbox.end or "client_gone")

    def _deliver_threadsafe(self, updates: list[Update]) -> None:
        assert self._loop is not None, "the engine delivers only after start"
        self._loop.call_soon_threadsafe(self._deliver, updates)

    def _deliver(self, updates: list[Update]) -> None:
        for update in updates:
            mailbox = self._mailboxes.get(update.request_key)
            if mailbox is not None:
                self._put(mailbox, update)

    def _put(self, mailbox: Mailbox, update: Update) -> None:
        if update.error is not None:
            mailbox.fail(update.error)
            return
        had_begun = mailbox.has_begun
        mailbox.put(
            GenerateDelta(
                request_id=mailbox.request_id,
                choices=update.choices,
                prompt_logprobs=update.prompt_logprobs,
                cached_tokens=update.cached_tokens,
            )
        )
        if mailbox.has_begun and not had_begun:
            self.metrics.first_token_came(seconds=time.perf_counter() - mailbox.opened)

    def _die_threadsafe(self, error: BaseException) -> None:
        assert self._loop is not None, "the engine dies only after start"
        message = f"the generate engine stopped: {type(error).__name__}"
        self._loop.call_soon_threadsafe(self._die, InternalError(message))

    def _die(self, error: TriptychError) -> None:
        self._fail_all(error)
        self.died.set()

    def _fail_all(self, error: TriptychError) -> None:
        for mailbox in self._mailboxes.values():
            mailbox.fail(error)
