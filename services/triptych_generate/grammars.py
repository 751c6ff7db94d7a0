"""The vocabularies and compiled grammars that a worker keeps, all bounded."""

import asyncio
import hashlib
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import msgspec

from triptych.errors import (
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
    VocabularyNeededError,
)
from triptych.structured import digest_of
from triptych.wire import GenerateRequest, StructuredOutputs, Vocabulary
from triptych_generate.admission import constrain
from triptych_generate.bindings import MissingLibraryError, compile_grammar, make_compiler, native
from triptych_generate.options import GrammarLimits
from triptych_generate.sequence import Sequence
from triptych_generate.trials import Trials

_PARAM = "sampling_params.structured_outputs"
MAX_FINGERPRINT_CHARS = 128
_NO_TEXT = b"\xff"


@dataclass(slots=True)
class _Kept:
    """One vocabulary: what compiles with it, and what was compiled. A refusal has no size."""

    sha256: str
    compiler: Any
    trials: Trials
    cache: OrderedDict[bytes, tuple[Any, int]] = field(default_factory=OrderedDict)
    running: dict[bytes, "asyncio.Task[Any]"] = field(default_factory=dict)


class GrammarStore:
    """Compiles grammars off the step loop, each once. Methods run on the event loop."""

    def __init__(
        self, *, vocab_size: int, eos_token_ids: frozenset[int], limits: GrammarLimits
    ) -> None:
        """``vocab_size``: logits of a row. ``eos_token_ids`` are never part of a text."""
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._limits = limits
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._putting = asyncio.Lock()

    async def put_vocabulary(self, vocabulary: Vocabulary) -> bool:
        """Keep a vocabulary; False when it is kept already.

        Raises:
            InvalidRequestError: wrong checksum or size, or another one under this fingerprint.
        """
        async with self._putting:
            known = self._kept.get(vocabulary.fingerprint)
            if known is not None and known.sha256 == vocabulary.sha256:
                return False
            _check_vocabulary(vocabulary, known)
            _require_library()
            await self._keep(vocabulary)
        return True

    def check(self, request: GenerateRequest) -> None:
        """Refuse a request whose grammar could not be compiled here.

        Raises:
            VocabularyNeededError: its tokenizer's vocabulary is not kept.
            InvalidRequestError: this installation lacks xgrammar.
        """
        if request.sampling_params.structured_outputs is not None:
            _require_library()
            self._vocabulary_of(request)

    async def constrain(self, sequences: list[Sequence], request: GenerateRequest) -> None:
        """Let the sequences of ``request`` follow its grammar, once it is compiled.

        Raises:
            InvalidRequestError: it cannot be compiled, or the output to resume from does not fit.
            OverloadedError, UnavailableError: see ``compiled``.
        """
        made = await self.compiled(request)
        await self._in_executor(lambda: constrain(sequences, made, vocab_size=self._vocab_size))

    async def compiled(self, request: GenerateRequest) -> Any:
        """The compiled grammar of ``request``, from the cache where it is known.

        Raises:
            InvalidRequestError: it cannot be compiled within the limits.
            OverloadedError: too many wait.
            UnavailableError: the compiles before it took too long.
        """
        kept, outputs = self._vocabulary_of(request), request.sampling_params.structured_outputs
        assert outputs is not None, "only structured requests have a grammar"
        key = hashlib.sha256(msgspec.json.encode(outputs)).digest()
        if key in kept.cache:
            kept.cache.move_to_end(key)
            return _unless_refused(kept.cache[key][0])
        task = kept.running.get(key) or self._begin(kept, key, outputs)
        try:
            async with asyncio.timeout(self._limits.wait_timeout_s):
                return _unless_refused(await asyncio.shield(task))
        except asyncio.CancelledError as error:
            if not task.cancelled():
                raise
            raise UnavailableError(
                "the vocabulary was dropped for another one, or the server stops", retry_after_s=1
            ) from error
        except TimeoutError as error:
            raise UnavailableError(
                f"structured_outputs waited {self._limits.wait_timeout_s:g} s for its compile, "
                f"the limit; other grammars were before it",
                retry_after_s=1,
            ) from error

    async def close(self) -> None:
        """End all processes and compiles."""
        while self._kept:
            await _close(self._kept.popitem()[1])
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _keep(self, vocabulary: Vocabulary) -> None:
        tokens = model_tokens(
            vocabulary.tokens, vocab_size=self._vocab_size, eos_token_ids=self._eos_token_ids
        )
        compiler = await self._in_executor(lambda: make_compiler(tokens))
        trials = Trials(
            tokens,
            timeout_s=self._limits.compile_timeout_s,
            memory_bytes=self._limits.compile_memory_bytes,
        )
        self._kept[vocabulary.fingerprint] = _Kept(vocabulary.sha256, compiler, trials)
        while len(self._kept) > self._limits.max_vocabularies:
            _, dropped = self._kept.popitem(last=False)
            await _close(dropped)

    def _vocabulary_of(self, request: GenerateRequest) -> _Kept:
        fingerprint = request.tokenizer_fingerprint or ""
        kept = self._kept.get(fingerprint)
        if kept is None:
            raise VocabularyNeededError(
                f"the vocabulary of tokenizer {fingerprint[:MAX_FINGERPRINT_CHARS]} is not here: "
                f"put it once (from derender's /vocabulary), then send the request again",
                param="tokenizer_fingerprint",
            )
        self._kept.move_to_end(fingerprint)
        return kept

    def _begin(self, kept: _Kept, key: bytes, outputs: StructuredOutputs) -> "asyncio.Task[Any]":
        if len(kept.running) >= self._limits.max_waiting:
            raise OverloadedError(
                f"{len(kept.running)} grammars wait for their compile, limit is "
                f"{self._limits.max_waiting}",
                retry_after_s=1,
            )
        task = asyncio.create_task(self._compile(kept, key, outputs))
        kept.running[key] = task

        def forget(done: "asyncio.Task[Any]") -> None:
            kept.running.pop(key)
            if not done.cancelled():
                done.exception()  # its waiters, who raise it, may be gone

        task.add_done_callback(forget)
        return task

    async def _compile(self, kept: _Kept, key: bytes, outputs: StructuredOutputs) -> Any:
        """The compiled grammar or its refusal; either is cached."""
        try:
            num_bytes = await kept.trials.run(outputs)
            if num_bytes > self._limits.max_cached_bytes:
                raise InvalidRequestError(
                    f"structured_outputs has {num_bytes:,} bytes when compiled, limit is "
                    f"{self._limits.max_cached_bytes:,}",
                    param=_PARAM,
                )
            made = await self._in_executor(lambda: compile_grammar(kept.compiler, outputs))
        except InvalidRequestError as refusal:
            made, num_bytes = refusal, 0
        kept.cache[key] = (made, num_bytes)
        self._shrink(kept.cache)
        return made

    def _shrink(self, cache: OrderedDict[bytes, tuple[Any, int]]) -> None:
        num_bytes = sum(size for _, size in cache.values())
        while num_bytes > self._limits.max_cached_bytes or len(cache) > self._limits.max_cached:
            num_bytes -= cache.popitem(last=False)[1][1]

    async def _in_executor(self, work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def model_tokens(
    tokens: list[bytes], *, vocab_size: int, eos_token_ids: frozenset[int]
) -> list[bytes]:
    """One token per logit: ids that the tokenizer lacks, and EOS, have no bytes.

    Special tokens, which come without bytes, get some that no text has: xgrammar never allows a
    token without bytes, not even where a grammar names its id.
    """
    fitted = [token or _NO_TEXT for token in tokens[:vocab_size]]
    fitted += [b""] * (vocab_size - len(fitted))
    for token_id in eos_token_ids:
        if token_id < vocab_size:
            fitted[token_id] = b""
    return fitted


def _unless_refused(made: Any) -> Any:
    if isinstance(made, InvalidRequestError):
        raise InvalidRequestError(made.message, param=made.param)
    return made


def _require_library() -> None:
    try:
        native()
    except MissingLibraryError as error:
        raise InvalidRequestError(
            "structured outputs need xgrammar, which this generate worker was installed without",
            param=_PARAM,
        ) from error


def _check_vocabulary(vocabulary: Vocabulary, known: _Kept | None) -> None:
    if not 0 < len(vocabulary.fingerprint) <= MAX_FINGERPRINT_CHARS:
        raise InvalidRequestError(
            f"fingerprint has {len(vocabulary.fingerprint):,} characters; it must have 1 to "
            f"{MAX_FINGERPRINT_CHARS}",
            param="fingerprint",
        )
    if known is not None:
        raise InvalidRequestError(
            f"another vocabulary is kept under {vocabulary.fingerprint}, with sha256 "
            f"{known.sha256}",
            param="sha256",
        )
    found = digest_of(vocabulary.tokens)
    if found != vocabulary.sha256:
        raise InvalidRequestError(
            f"the tokens have sha256 {found}, not {vocabulary.sha256[:64]}", param="sha256"
        )


async def _close(kept: _Kept) -> None:
    running = list(kept.running.values())
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await kept.trials.close()
