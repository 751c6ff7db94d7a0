"""What a worker keeps of vocabularies and grammars is bounded, and so is every compile."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest

from support.generate_runs import Answer, answer, running_service, until
from support.grammars import EOS_ID, TOKENS, VOCABULARY, ask_structured
from support.tiny_models import VOCAB_SIZE, make_tiny_model
from triptych.errors import (
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
    VocabularyNeededError,
)
from triptych.structured import make_vocabulary
from triptych.wire import GenerateRequest, StructuredOutputs, join_deltas
from triptych_generate.grammars import GrammarStore
from triptych_generate.options import GrammarLimits
from triptych_generate.trials import Trials

#: Compiling it takes minutes.
ENDLESS = StructuredOutputs(
    regex=f"({'|'.join(f'[a-{chr(98 + i % 20)}]{{1,{i + 2}}}' for i in range(3000))}){{1,50}}"
)
DIGITS = StructuredOutputs(regex="[0-9]+")


def request(outputs: StructuredOutputs, fingerprint: str = "tiny") -> GenerateRequest:
    return msgspec.structs.replace(
        ask_structured([1, 2, 3], outputs), tokenizer_fingerprint=fingerprint
    )


def regex(number: int) -> GenerateRequest:
    return request(StructuredOutputs(regex=f"a{{{number}}}"))


@contextlib.asynccontextmanager
async def running_store(**limits: Any) -> AsyncIterator[GrammarStore]:
    store = GrammarStore(
        vocab_size=VOCAB_SIZE,
        eos_token_ids=frozenset({EOS_ID}),
        limits=GrammarLimits(**limits),
    )
    assert await store.put_vocabulary(VOCABULARY)
    try:
        yield store
    finally:
        await store.close()


async def test_grammar_is_compiled_once() -> None:
    async with running_store() as store:
        first, second = await asyncio.gather(*(store.compiled(request(DIGITS)) for _ in range(2)))
        again = await store.compiled(request(DIGITS))
    assert first is second is again


async def test_compile_that_takes_too_long_is_cut_off_and_the_next_one_works() -> None:
    async with running_store(compile_timeout_s=0.5) as store:
        with pytest.raises(InvalidRequestError, match=r"longer to compile than 0\.5 s, the limit"):
            await store.compiled(request(ENDLESS))
        assert await store.compiled(request(DIGITS)) is not None


async def test_refusal_is_remembered() -> None:
    """The second answer needs no process: there is none, and none may be started."""
    async with running_store(compile_timeout_s=0.5) as store:
        for _ in range(2):
            with pytest.raises(InvalidRequestError, match="longer to compile"):
                await asyncio.wait_for(store.compiled(request(ENDLESS)), 20)
            (kept,) = store._kept.values()
            assert kept.trials._process is None


async def test_compile_that_takes_too_much_memory_is_cut_off() -> None:
    trials = Trials(TOKENS, timeout_s=60, memory_bytes=1 << 20)
    try:
        with pytest.raises(InvalidRequestError, match="needs more than 1,048,576 bytes"):
            await trials.run(ENDLESS)
        assert await trials.run(DIGITS) > 0
    finally:
        await trials.close()


async def test_trials_go_on_after_their_process_was_killed_while_idle() -> None:
    trials = Trials(TOKENS, timeout_s=60, memory_bytes=1 << 30)
    try:
        assert await trials.run(DIGITS) > 0
        assert trials._process is not None
        os.kill(trials._process.child.pid, signal.SIGKILL)
        await asyncio.to_thread(trials._process.child.wait)
        assert await trials.run(DIGITS) > 0
    finally:
        await trials.close()


@pytest.mark.parametrize(
    ("sent", "error", "says"),
    [
        (signal.SIGSEGV, InvalidRequestError, "breaks the compiler"),
        (signal.SIGKILL, UnavailableError, "ended with status -9"),
    ],
)
async def test_death_of_the_process_is_the_grammars_fault_only_if_it_crashed(
    sent: signal.Signals, error: type[Exception], says: str
) -> None:
    trials = Trials(TOKENS, timeout_s=60, memory_bytes=1 << 30)
    try:
        assert await trials.run(DIGITS) > 0
        assert trials._process is not None
        slow = asyncio.create_task(trials.run(ENDLESS))
        await asyncio.sleep(0)  # the grammar is on its way
        os.kill(trials._process.child.pid, sent)
        with pytest.raises(error, match=says):
            await slow
        assert await trials.run(DIGITS) > 0
    finally:
        await trials.close()


async def test_trial_process_ends_with_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych_generate.trials._END_S", 60)
    trials = Trials(TOKENS, timeout_s=60, memory_bytes=1 << 30)
    await trials.run(DIGITS)
    process = trials._process
    assert process is not None
    await trials.close()
    assert process.child.returncode == 0


async def test_compiles_in_line_wait_for_a_bounded_time() -> None:
    async with running_store(compile_timeout_s=100, wait_timeout_s=0.3) as store:
        slow = asyncio.ensure_future(store.compiled(request(ENDLESS)))
        await until(lambda: any(kept.running for kept in store._kept.values()))
        with pytest.raises(UnavailableError, match=r"waited 0\.3 s") as error:
            await store.compiled(request(DIGITS))
        assert error.value.retry_after_s
        with pytest.raises(UnavailableError):
            await slow


async def test_too_many_compiles_are_refused() -> None:
    async with running_store(max_waiting=1, compile_timeout_s=1) as store:
        slow = asyncio.ensure_future(store.compiled(request(ENDLESS)))
        await until(lambda: any(kept.running for kept in store._kept.values()))
        with pytest.raises(OverloadedError, match="1 grammars wait"):
            await store.compiled(request(DIGITS))
        with pytest.raises(InvalidRequestError):
            await slow


async def test_number_and_size_of_kept_grammars_are_bounded() -> None:
    async with running_store(max_cached=3) as store:
        kept = [await store.compiled(regex(number)) for number in range(1, 5)]
        assert await store.compiled(regex(4)) is kept[3]
        assert await store.compiled(regex(1)) is not kept[0]
    size = kept[1].memory_size_bytes()
    async with running_store(max_cached_bytes=size + 50) as store:
        first = await store.compiled(regex(1))
        await store.compiled(regex(2))
        assert await store.compiled(regex(1)) is not first
    async with running_store(max_cached_bytes=10) as store:
        with pytest.raises(InvalidRequestError, match="when compiled, limit is 10"):
            await store.compiled(regex(1))


async def test_oldest_vocabulary_goes_when_there_are_too_many() -> None:
    async with running_store(max_vocabularies=2) as store:
        assert not await store.put_vocabulary(VOCABULARY)
        assert await store.put_vocabulary(make_vocabulary("second", TOKENS))
        await store.compiled(request(DIGITS))  # the first is the newer one now
        assert await store.put_vocabulary(make_vocabulary("third", TOKENS[:50]))
        store.check(request(DIGITS))
        with pytest.raises(VocabularyNeededError, match="second is not here"):
            store.check(request(DIGITS, "second"))


async def test_waiting_request_hears_that_its_vocabulary_was_dropped() -> None:
    async with running_store(max_vocabularies=1, compile_timeout_s=30) as store:
        slow = asyncio.ensure_future(store.compiled(request(ENDLESS)))
        await until(lambda: any(kept.running for kept in store._kept.values()))
        await store.put_vocabulary(make_vocabulary("second", TOKENS))
        with pytest.raises(UnavailableError, match="was dropped"):
            await slow


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"sha256": "0" * 64}, "sha256"),
        ({"tokens": TOKENS[1:]}, "sha256"),
        ({"tokens": [b"", *TOKENS], "fingerprint": "other"}, "sha256"),
        ({"fingerprint": ""}, "fingerprint"),
        ({"fingerprint": "x" * 129}, "fingerprint"),
    ],
)
async def test_vocabulary_that_is_not_what_it_says_is_refused(
    changes: dict[str, Any], param: str
) -> None:
    vocabulary = msgspec.structs.replace(make_vocabulary("new", TOKENS), **changes)
    async with running_store() as store:
        with pytest.raises(InvalidRequestError) as error:
            await store.put_vocabulary(vocabulary)
        assert error.value.param == param


async def test_another_vocabulary_under_a_known_fingerprint_is_refused() -> None:
    async with running_store() as store:
        with pytest.raises(InvalidRequestError, match="another vocabulary is kept under tiny"):
            await store.put_vocabulary(make_vocabulary("tiny", TOKENS[:90]))


def test_installation_without_xgrammar_says_what_is_missing() -> None:
    script = """
import asyncio, sys
sys.modules["xgrammar"] = None  # as if it were not installed
from triptych.errors import InvalidRequestError
from triptych.structured import make_vocabulary
from triptych_generate.grammars import GrammarStore
from triptych_generate.options import GrammarLimits

async def main():
    store = GrammarStore(vocab_size=9, eos_token_ids=frozenset(), limits=GrammarLimits())
    try:
        await store.put_vocabulary(make_vocabulary("f", [b"a"]))
    except InvalidRequestError as error:
        print(error.message)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], check=True, capture_output=True, text=True
    )
    assert "need xgrammar" in done.stdout


async def test_request_waits_for_its_grammar_and_can_be_ended_meanwhile(tmp_path: Any) -> None:
    limits = GrammarLimits(compile_timeout_s=30)
    async with running_service(make_tiny_model("llama", tmp_path), grammars=limits) as service:
        with pytest.raises(VocabularyNeededError, match="tiny is not here"):
            await answer(service, request(DIGITS))
        await service.put_vocabulary(VOCABULARY)
        slow = msgspec.structs.replace(request(ENDLESS), request_id="slow")

        async def collect() -> Any:
            return join_deltas([delta async for delta in service.generate(slow)])

        aborted = asyncio.create_task(collect())
        await until(lambda: any(kept.running for kept in service._grammars._kept.values()))
        assert service.abort("slow")
        (choice,), _ = await asyncio.wait_for(aborted, 5)
        assert (choice.token_ids, choice.finish_reason) == ([], "abort")
        stopped = asyncio.create_task(collect())
        await until(lambda: "slow" in service._keys_by_id)
    with pytest.raises(UnavailableError):
        await stopped


async def test_requests_that_wait_for_a_grammar_are_bounded_like_others(tmp_path: Any) -> None:
    model_dir = make_tiny_model("llama", tmp_path)
    async with running_service(
        model_dir, max_waiting=3, grammars=GrammarLimits(compile_timeout_s=1)
    ) as service:
        await service.put_vocabulary(VOCABULARY)
        blocked = [asyncio.create_task(answer(service, request(ENDLESS)))]
        blocked += [asyncio.create_task(answer(service, request(DIGITS))) for _ in range(2)]
        await until(lambda: service.occupancy().num_waiting == 3)
        assert service.occupancy().num_waiting_tokens == 9
        with pytest.raises(OverloadedError, match="3 requests wait, limit is 3"):
            await answer(service, request(DIGITS))
        refused, *given = await asyncio.gather(*blocked, return_exceptions=True)
        assert isinstance(refused, InvalidRequestError)
        assert all(isinstance(one, Answer) for one in given)
        await until(lambda: service.occupancy().is_idle)


async def test_refusal_of_a_grammar_and_the_wait_for_it_are_in_the_metrics(tmp_path: Any) -> None:
    hopeless = request(StructuredOutputs(regex="a(?=b)"))
    async with running_service(make_tiny_model("llama", tmp_path)) as service:
        await service.put_vocabulary(VOCABULARY)
        with pytest.raises(InvalidRequestError, match="cannot be compiled"):
            await answer(service, hopeless)
        await answer(service, request(DIGITS))
        await until(lambda: service.occupancy().is_idle)
        page = "".join(generate_latest(one).decode() for one in service.metrics.collectors)
    figures = dict(line.rsplit(" ", 1) for line in page.splitlines() if line[0] != "#")
    ended = "triptych_generate_requests_ended_total"
    assert figures[f'{ended}{{reason="invalid_request_error"}}'] == "1.0"
    assert f'{ended}{{reason="client_gone"}}' not in figures
    first, whole = (
        float(figures[f"triptych_generate_{name}_seconds_sum"])
        for name in ("first_token", "answer")
    )
    assert first <= whole


async def test_request_that_does_not_ask_waits_for_no_compile(tmp_path: Any) -> None:
    limits = GrammarLimits(compile_timeout_s=2)
    async with running_service(make_tiny_model("llama", tmp_path), grammars=limits) as service:
        await service.put_vocabulary(VOCABULARY)
        slow = asyncio.create_task(answer(service, request(ENDLESS)))
        plain = msgspec.structs.replace(
            request(DIGITS),
            sampling_params=msgspec.structs.replace(
                request(DIGITS).sampling_params, structured_outputs=None
            ),
        )
        await answer(service, plain)
        assert not slow.done()
        with pytest.raises(InvalidRequestError, match="longer to compile than 2 s"):
            await slow
