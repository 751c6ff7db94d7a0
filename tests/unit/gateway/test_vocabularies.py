"""A worker gets the vocabulary when it says that it lacks it, and then the request again."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from support.fakes import token
from support.takers import drawn_taker
from triptych.errors import InvalidRequestError, UnavailableError, VocabularyNeededError
from triptych.mailbox import Taker
from triptych.structured import make_vocabulary
from triptych.wire import GenerateDelta, GenerateRequest, ModelInfo, SamplingParams, Vocabulary
from triptych_gateway.vocabularies import WithVocabulary

REQUEST = GenerateRequest(
    token_ids=[1], sampling_params=SamplingParams(), tokenizer_fingerprint="f"
)


class ScriptedWorker:
    """Answers with two tokens once it was given the vocabulary; ``refuses`` the request then."""

    def __init__(self, *, refuses: Exception | None = None) -> None:
        self.given: list[Vocabulary] = []
        self.num_asked = 0
        self._refuses = refuses

    async def generate(
        self, request: GenerateRequest, taker: Taker | None = None
    ) -> AsyncGenerator[GenerateDelta, None]:
        self.num_asked += 1
        await asyncio.sleep(0)
        if not self.given:
            raise VocabularyNeededError("needed")
        if self._refuses is not None:
            raise self._refuses
        if taker is None or not taker(token(request, 4)):
            yield token(request, 4)
        yield token(request, 5, is_last=True)

    async def put_vocabulary(self, vocabulary: Vocabulary) -> None:
        await asyncio.sleep(0)
        self.given.append(vocabulary)

    async def info(self) -> ModelInfo:
        return ModelInfo(
            model="m", max_model_len=1, vocab_size=1, dtype="x", device="x", max_logprobs=0
        )


class Source:
    def __init__(self, fingerprint: str = "f") -> None:
        self._fingerprint = fingerprint

    async def vocabulary(self) -> Vocabulary:
        return make_vocabulary(self._fingerprint, [b"a"])


async def _tokens(link: WithVocabulary, taker: Taker | None = None) -> list[int]:
    deltas = [delta async for delta in link.generate(REQUEST, taker)]
    return [each for delta in deltas for choice in delta.choices for each in choice.token_ids]


async def test_worker_is_given_the_vocabulary_once() -> None:
    worker = ScriptedWorker()
    link = WithVocabulary(worker, Source())
    given = await asyncio.gather(*(_tokens(link) for _ in range(8)))
    assert given == [[4, 5]] * 8
    assert [vocabulary.fingerprint for vocabulary in worker.given] == ["f"]
    assert await _tokens(link) == [4, 5]
    assert worker.num_asked == 17


async def test_taker_is_offered_what_comes_before_and_after_the_vocabulary_was_needed() -> None:
    link = WithVocabulary(ScriptedWorker(), Source())
    for _ in range(2):
        taken: list[GenerateDelta] = []
        assert await _tokens(link, drawn_taker(1, 1, taken.append)) == [5]
        assert [choice.token_ids for delta in taken for choice in delta.choices] == [[4]]


async def test_worker_that_has_lost_it_is_given_it_again() -> None:
    worker = ScriptedWorker()
    link = WithVocabulary(worker, Source())
    for _ in range(2):
        worker.given.clear()
        assert await _tokens(link) == [4, 5]
        assert len(worker.given) == 1


async def test_other_refusals_are_passed_on() -> None:
    worker = ScriptedWorker(refuses=InvalidRequestError("bad grammar", param="p"))
    with pytest.raises(InvalidRequestError, match="bad grammar"):
        await _tokens(WithVocabulary(worker, Source()))
    assert worker.num_asked == 2


async def test_worker_that_never_keeps_it_is_asked_twice_at_most() -> None:
    worker = ScriptedWorker(refuses=VocabularyNeededError("still needed"))
    with pytest.raises(VocabularyNeededError, match="still needed"):
        await _tokens(WithVocabulary(worker, Source()))
    assert worker.num_asked == 2


async def test_vocabulary_of_another_tokenizer_is_not_sent() -> None:
    worker = ScriptedWorker()
    with pytest.raises(UnavailableError, match="render has tokenizer f, derender g"):
        await _tokens(WithVocabulary(worker, Source("g")))
    assert worker.given == []
