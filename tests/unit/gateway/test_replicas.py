"""Replicas are found, ejected and let in again; addresses are read and resolved."""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fake_fleet import (
    FAST,
    Directory,
    FakeWorker,
    fake_workers,
    info,
    unreachable,
    until,
    until_state,
)
from triptych.errors import SetupError, UnavailableError
from triptych.settings import parse_settings
from triptych.wire import ModelInfo
from triptych_gateway.addresses import resolve, split_addresses
from triptych_gateway.replica import Lease, Replica
from triptych_gateway.replicas import WatchOptions
from triptych_gateway.settings import GatewaySettings

#: Probes often, and takes no silence for a hang.
PATIENT = WatchOptions(probe_every_s=0.02)


def test_addresses_are_separated_by_commas_and_come_once() -> None:
    assert split_addresses("a:1, [::1]:2,,a:1") == ["a:1", "[::1]:2"]


@pytest.mark.parametrize("bad", ["", " , ", "a", "a:", ":1", "a:0", "a:65536", "::1:5", "x://a:1"])
def test_bad_address_is_a_line_that_names_the_flag(bad: str) -> None:
    with pytest.raises(SetupError, match="--generate"):
        parse_settings(GatewaySettings, [f"--generate={bad}"])


def test_vllm_server_may_be_a_generate_worker_and_nothing_else() -> None:
    mixed = "http://a:1,b:2,https://c:3"
    assert split_addresses(mixed, may_be_json=True) == mixed.split(",")
    assert parse_settings(GatewaySettings, [f"--generate={mixed}"]).generate == mixed
    with pytest.raises(SetupError, match="--render"):
        parse_settings(GatewaySettings, ["--render=http://a:1"])


@pytest.mark.parametrize("bad", ["http://a", "http://a:1/v1", "http://", "http://u@a:1"])
def test_address_of_a_vllm_server_is_host_and_port(bad: str) -> None:
    with pytest.raises(SetupError, match="--generate"):
        parse_settings(GatewaySettings, [f"--generate={bad}"])


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        addresses = split_addresses(text)
    except ValueError:
        return
    assert all(":" in each for each in addresses)


async def test_literals_stand_for_themselves_and_names_for_one_family() -> None:
    assert await resolve("127.0.0.1:5") == ["127.0.0.1:5"]
    assert await resolve("[::1]:5") == ["[::1]:5"]
    assert await resolve("http://127.0.0.1:5") == ["http://127.0.0.1:5"]
    assert await resolve("http://localhost:5") in (["http://127.0.0.1:5"], ["http://[::1]:5"])
    assert await resolve("https://localhost:5") == ["https://localhost:5"]
    assert await resolve("localhost:5") in (["127.0.0.1:5"], ["[::1]:5"])


@pytest.mark.parametrize("name", ["no-such-name.invalid", "generate..svc", "x" * 64])
async def test_name_that_does_not_exist_raises(name: str) -> None:
    with pytest.raises(OSError):  # noqa: PT011  # its text is the resolver's
        await resolve(f"{name}:5")


async def test_replicas_come_and_go_with_their_addresses() -> None:
    first, second, directory = FakeWorker("a"), FakeWorker("b"), Directory("a")
    async with fake_workers(first, second, directory=directory) as replicas:
        assert [each.address for each in replicas.usable()] == ["a"]
        directory.addresses = ["a", "b"]
        await until_state(replicas, up=2)
        directory.addresses = ["b"]
        await until_state(replicas, up=1)
        assert [each.address for each in replicas.usable()] == ["b"]
    assert first.is_closed
    assert second.is_closed


async def test_vanished_replica_is_closed_when_its_requests_have_ended() -> None:
    worker, directory = FakeWorker("a"), Directory("a")
    async with fake_workers(worker, directory=directory) as replicas:
        (replica,) = replicas.usable()
        with replica.lease():
            directory.addresses = []
            await until_state(replicas, gone=1)
            assert replicas.usable() == []
            await asyncio.sleep(3 * FAST.probe_every_s)
            assert not worker.is_closed
        await until(lambda: worker.is_closed)
        assert replicas.replicas == []


async def test_replica_that_comes_back_before_it_was_closed_is_kept() -> None:
    directory = Directory("a")
    async with fake_workers(FakeWorker("a"), directory=directory) as replicas:
        with replicas.usable()[0].lease():
            directory.addresses = []
            await until_state(replicas, gone=1)
            directory.addresses = ["a"]
            await until_state(replicas, up=1)


async def test_name_server_that_fails_takes_nobody_away() -> None:
    directory = Directory("a")
    async with fake_workers(FakeWorker("a"), directory=directory) as replicas:
        directory.addresses = None
        await asyncio.sleep(4 * FAST.resolve_every_s)
        assert len(replicas.usable()) == 1


async def test_replica_is_not_used_before_it_has_answered() -> None:
    worker, directory = FakeWorker("b", probe_error=unreachable()), Directory("a")
    async with fake_workers(FakeWorker("a"), worker, directory=directory) as replicas:
        directory.addresses = ["a", "b"]
        await until_state(replicas, up=1, down=1)
        assert [each.address for each in replicas.usable()] == ["a"]
        worker.probe_error = None
        await until_state(replicas, up=2)


async def test_probe_that_fails_as_nobody_thought_is_not_the_last() -> None:
    worker = FakeWorker("a")
    async with fake_workers(worker) as replicas:
        worker.probe_error = KeyError("what")
        await until_state(replicas, down=1)
        worker.probe_error = None
        await until_state(replicas, up=1)


async def test_replica_under_suspicion_is_asked_at_once() -> None:
    worker = FakeWorker("a")
    async with fake_workers(worker, options=WatchOptions(probe_every_s=60)) as replicas:
        (replica,) = replicas.usable()
        worker.probe_error = UnavailableError("it drains")
        replica.suspect()
        assert replica.state == "suspect"
        await until_state(replicas, down=1)


class HeldWorker(FakeWorker):
    """One whose probes wait for the test."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()

    async def probe(self) -> ModelInfo:
        self.asked.set()
        await self.may_answer.wait()
        return await super().probe()


async def test_request_that_fails_during_a_probe_costs_the_replica_no_later_work() -> None:
    worker = HeldWorker("a")
    async with fake_workers(worker, FakeWorker("b"), options=PATIENT) as replicas:
        replica = next(each for each in replicas.replicas if each.address == "a")
        worker.may_answer.clear()
        worker.asked.clear()
        await worker.asked.wait()
        replicas.suspect(replica)
        assert replica not in replicas.best()
        worker.may_answer.set()
        await until(lambda: replica.state == "up")
        assert replica in replicas.best()


async def test_load_is_what_was_reported_and_what_was_begun_since() -> None:
    replica = Replica("a", FakeWorker("a").connection())
    assert replica.load == 0
    said = info()
    assert said.load is not None
    busy = msgspec.structs.replace(said.load, num_running=5, num_waiting=2)
    with replica.lease(3):
        replica.answered(
            msgspec.structs.replace(said, load=busy), 0.0, stall_timeout_s=FAST.stall_timeout_s
        )
        assert replica.load == 7
        with replica.lease(2):
            assert replica.load == 9
    assert replica.load == 4


async def test_one_silent_probe_is_no_hang_however_long_it_took() -> None:
    replica = Replica("a", FakeWorker("a").connection())
    replica.answered(info(), 0.0, stall_timeout_s=100)
    with replica.lease() as lease:
        replica.was_silent(0.0, 1000.0, hang_timeout_s=10)
        assert (replica.state, await lease.wait(_seven)) == ("suspect", 7)
        replica.was_silent(1000.0, 1002.0, hang_timeout_s=10)
        replica.was_silent(1003.0, 1011.0, hang_timeout_s=10)
        assert replica.state == "down"
        with pytest.raises(UnavailableError, match="a hangs: no answer in 10 s"):
            await lease.wait(_seven)


async def _seven() -> int:
    await asyncio.sleep(0)
    return 7


async def test_cut_ends_the_wait_and_leaves_the_task_uncancelled() -> None:
    lease = _lease()
    asyncio.get_running_loop().call_soon(lease.cut, unreachable())
    with pytest.raises(UnavailableError):
        await lease.wait(asyncio.Event().wait)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_cancelling_wins_over_a_cut() -> None:
    lease = _lease()
    task = asyncio.create_task(lease.wait(asyncio.Event().wait))
    await asyncio.sleep(0)
    lease.cut(unreachable())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def _lease() -> Lease:
    return Lease(Replica("a", FakeWorker("a").connection()))
