"""deploy's compose files as local processes: what ships is what is tested.

Every replica runs its service's own command, environment, volumes, user and health check, in
network and mount namespaces of its own where they can be made (``is_private``), and names resolve
as in compose: to every running replica. Differences: ``triptych`` is ``python -m triptych_cli`` of
this Python, or of an environment built as the image's is; a published port is any free one; limits
are not applied; and nothing is restarted unless the test does it.
"""

import contextlib
import dataclasses
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.compose_file import ComposeService, Mount, read_services
from support.containers import Container, programs_of, run_inside, start_container
from support.loopback import addresses, run_beside, start_process
from support.private_network import PrivateNetwork

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "compose.yaml"
SECURE = ROOT / "deploy" / "compose.secure.yaml"
START_TIMEOUT_S = 200
#: Seconds that one health check may take, as the Dockerfile says.
CHECK_TIMEOUT_S = 5


@dataclass(slots=True)
class Replica:
    """One container of a service; ``log`` is its output."""

    service: ComposeService
    container: Container
    log: Path

    @property
    def is_running(self) -> bool:
        return self.container.process.poll() is None


class Fleet:
    """The services of the compose file with replicas; a context manager that starts and ends them.

    Args:
        folder: for logs and roots; stays after the end.
        variables: of the compose file, such as ``MODEL``.
        volumes: directories of its named volumes.
        scale: replicas by service; one of each that is not named.
        is_private: in namespaces; otherwise on loopback addresses.
        environments: a Python environment per service, instead of this one.
        is_secure: with compose.secure.yaml.
    """

    def __init__(
        self,
        folder: Path,
        *,
        variables: dict[str, str],
        volumes: dict[str, Path],
        scale: dict[str, int],
        is_private: bool,
        environments: dict[str, Path] | None = None,
        is_secure: bool = False,
    ) -> None:
        self._folder = folder
        files = (COMPOSE, SECURE) if is_secure else (COMPOSE,)
        self._services = {
            name: dataclasses.replace(
                service, mounts=[_placed(mount, volumes) for mount in service.mounts]
            )
            for name, service in read_services(files, variables).items()
        }
        self._scale = scale
        self._environments = environments or {}
        self._is_private = is_private
        self._network = PrivateNetwork()
        self._addresses = addresses()
        self._reserved: dict[str, list[str]] = {}
        self._num_started = 0
        self._replicas: dict[str, list[Replica]] = {name: [] for name in self._services}

    def __enter__(self) -> "Fleet":
        with contextlib.ExitStack() as stack:
            if self._is_private:
                stack.enter_context(self._network)
            stack.callback(self._end)
            self._start_all()
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def replicas(self, service: str) -> list[Replica]:
        """Those that were started and not removed, dead ones too."""
        return list(self._replicas[service])

    def url(self, service: str, index: int = 0) -> str:
        """Base address of a replica's JSON port, as this process reaches it."""
        replica = self._replicas[service][index]
        address, port = replica.container.address, replica.service.image.ports[0]
        if self._is_private:
            address, port = "127.0.0.1", self._network.publish(address, port)
        return f"http://{address}:{port}"

    def python(self, service: str) -> str:
        """The Python that ``service`` runs in."""
        environment = self._environments.get(service)
        return sys.executable if environment is None else str(environment / "bin" / "python")

    def send(self, service: str, index: int, number: signal.Signals) -> None:
        """A signal to a replica; after SIGKILL its name no longer leads to it."""
        replica = self._replicas[service][index]
        replica.container.process.send_signal(number)
        if number is signal.SIGKILL:
            replica.container.process.wait()
            self._tell_names()

    def stop(self, service: str, index: int) -> float:
        """Seconds that a replica took to stop as ``docker stop`` does it; it is removed."""
        replica = self._replicas[service].pop(index)
        self._tell_names()
        start = time.monotonic()
        _stop(replica)
        return time.monotonic() - start

    def scale(self, service: str, count: int) -> None:
        """Start replicas, or stop the last ones, until ``count`` are there; those are healthy."""
        while len(self._replicas[service]) > count:
            self.stop(service, -1)
        while len(self._replicas[service]) < count:
            self._start(self._services[service])
        self.wait_healthy(service)

    def wait_healthy(self, *services: str) -> None:
        """Wait until every running replica of ``services`` (of all) passes its health check."""
        deadline = time.monotonic() + START_TIMEOUT_S
        waiting = [each for name in services or self._replicas for each in self._replicas[name]]
        while waiting := [each for each in waiting if not self.is_healthy(each)]:
            for replica in waiting:
                if not replica.is_running or time.monotonic() > deadline:
                    name, log = replica.service.name, replica.log.read_text()
                    raise AssertionError(f"{name} is not healthy:\n{log}")
            time.sleep(1)

    def is_healthy(self, replica: Replica) -> bool:
        """One run of its health check; a service without one is healthy."""
        check = replica.service.healthcheck
        if check is None:
            return True
        run = run_inside if self._is_private else run_beside
        argv = self._command(replica.service, check)
        return run(replica.container, argv, timeout_s=CHECK_TIMEOUT_S)

    def _start_all(self) -> None:
        wanted = {name: self._scale.get(name, 1) for name in self._services}
        if not self._is_private:  # names become lists, which have to be known in advance
            for name, count in wanted.items():
                self._reserved[name] = [next(self._addresses) for _ in range(count)]
        for name in _in_order(self._services):
            for _ in range(wanted[name]):
                self._start(self._services[name])
            if any(name in service.needs for service in self._services.values()):
                self._complete(name)
        self.wait_healthy()

    def _start(self, service: ComposeService) -> None:
        self._num_started += 1
        folder = self._folder / f"{service.name}-{self._num_started}"
        folder.mkdir(parents=True)
        log = folder / "log"
        argv = self._command(service, service.argv)
        environment = dict(service.environment)
        if service.name not in self._environments:
            environment["PYTHONPATH"] = f"{ROOT}/services:{ROOT}/shared"
        with log.open("wb") as output:
            if self._is_private:
                container = start_container(
                    service,
                    self._network,
                    argv=argv,
                    environment=environment,
                    programs=programs_of(ROOT, *self._environments.values()),
                    folder=folder,
                    log=output,
                )
            else:
                place = self._reserved[service.name]
                container = start_process(
                    service,
                    argv=argv,
                    environment=environment,
                    address=place[len(self._replicas[service.name])],
                    names=self._reserved,
                    log=output,
                )
        self._replicas[service.name].append(Replica(service, container, log))
        self._tell_names()

    def _command(self, service: ComposeService, argv: list[str]) -> list[str]:
        """``argv`` with this machine's Python for the image's ``triptych`` and ``python``."""
        python = self.python(service.name)
        program = {"triptych": [python, "-m", "triptych_cli"], "python": [python]}[argv[0]]
        return [*program, *argv[1:]]

    def _complete(self, name: str) -> None:
        """Wait until the replicas of ``name`` have ended well; then they are gone."""
        for replica in self._replicas[name]:
            status = replica.container.process.wait(START_TIMEOUT_S)
            assert status == 0, replica.log.read_text()
        self._replicas[name].clear()

    def _tell_names(self) -> None:
        self._network.names = {
            name: [replica.container.address for replica in replicas if replica.is_running]
            for name, replicas in self._replicas.items()
        }

    def _end(self) -> None:
        everything = [replica for replicas in self._replicas.values() for replica in replicas]
        for replica in everything:
            replica.container.process.kill()
        for replica in everything:
            replica.container.process.wait()


def _placed(mount: Mount, volumes: dict[str, Path]) -> Mount:
    source = volumes.get(mount.source, COMPOSE.parent / mount.source)
    return dataclasses.replace(mount, source=str(source))


def _in_order(services: dict[str, ComposeService]) -> Iterator[str]:
    """Names, each after what it needs."""
    waiting = dict(services)
    while waiting:
        name = next(name for name, each in waiting.items() if not set(each.needs) & set(waiting))
        del waiting[name]
        yield name


def _stop(replica: Replica) -> None:
    process = replica.container.process
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(replica.service.stop_grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
