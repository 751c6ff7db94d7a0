"""A whole fleet of real processes, two of each panel behind a gateway, that a test kills."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from support.stack import free_ports

TESTS = Path(__file__).parent.parent
PANELS = ("render", "generate", "derender")
REPLICAS = 2
#: Seconds that anything may take on a busy machine; nothing is measured.
TIMEOUT_S = 120


@dataclass(slots=True)
class Process:
    """One service: the arguments of ``triptych`` that start it, and its process now."""

    args: list[str]
    log: Path
    pid: int = 0
    num_starts: int = 0


@dataclass(slots=True)
class LocalFleet:
    """``processes`` by name: ``gateway``, ``render-0`` and so on."""

    gateway: str
    nursery: subprocess.Popen[str]
    processes: dict[str, Process] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Start it (again) and wait until it serves."""
        process = self.processes[name]
        order = json.dumps({"args": process.args, "log": str(process.log)})
        assert self.nursery.stdin is not None
        self.nursery.stdin.write(order + "\n")
        self.nursery.stdin.flush()
        process.pid = int(self._answer())
        process.num_starts += 1
        wait_until(lambda: self._num_served(process) == process.num_starts, process.log)

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self.processes[name].pid, number)

    def kill(self, name: str) -> None:
        self.signal(name, signal.SIGKILL)
        self.wait_until_gone(name)

    def wait_until_gone(self, name: str) -> None:
        """Until its process has ended, so that its ports are free."""
        process = self.processes[name]
        wait_until(lambda: not Path(f"/proc/{process.pid}").exists(), process.log)

    def num_up(self, panel: str) -> int:
        """How many replicas the gateway counts as up."""
        return int(self.metric("replicas", panel=panel, state="up"))

    def metric(self, name: str, **labels: str) -> float:
        """A figure of the gateway's."""
        page = httpx.get(f"{self.gateway}/metrics", timeout=TIMEOUT_S).text
        wanted = ",".join(f'{key}="{value}"' for key, value in labels.items())
        line = re.escape(f"triptych_gateway_{name}{{{wanted}}} ")
        found = re.search(f"^{line}(.*)$", page, re.MULTILINE)
        assert found is not None, page
        return float(found[1])

    def wait_until_up(self, panel: str, count: int = REPLICAS) -> None:
        wait_until(lambda: self.num_up(panel) == count, self.processes["gateway"].log)

    def _answer(self) -> str:
        assert self.nursery.stdout is not None
        return self.nursery.stdout.readline()

    @staticmethod
    def _num_served(process: Process) -> int:
        return process.log.read_text().count("serves on") if process.log.exists() else 0


@contextlib.contextmanager
def local_fleet(
    folder: Path, flags: dict[str, list[str]], *gateway_flags: str
) -> Iterator[LocalFleet]:
    """Two replicas of each panel, with ``flags`` by panel, and a gateway; logs: ``folder``."""
    ports = free_ports(1 + len(PANELS) * REPLICAS)
    nursery = subprocess.Popen(
        [sys.executable, "-m", "support.nursery"],
        cwd=TESTS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with nursery:
        try:
            fleet = LocalFleet(f"http://127.0.0.1:{ports[0]}", nursery)
            assert fleet._answer() == "ready\n"
            addresses = iter(f"127.0.0.1:{port}" for port in ports[1:])
            lists = {panel: [next(addresses) for _ in range(REPLICAS)] for panel in PANELS}
            for panel, places in lists.items():
                for index, place in enumerate(places):
                    args = [panel, "--http-port=0", f"--grpc-port={place.partition(':')[2]}"]
                    name = f"{panel}-{index}"
                    log = folder / f"{name}.log"
                    fleet.processes[name] = Process([*args, *flags[panel]], log)
                    fleet.start(name)
            args = ["gateway", f"--http-port={ports[0]}", *gateway_flags]
            args += [f"--{panel}={','.join(places)}" for panel, places in lists.items()]
            fleet.processes["gateway"] = Process(args, folder / "gateway.log")
            fleet.start("gateway")
            yield fleet
        finally:
            for process in fleet.processes.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            nursery.kill()


def wait_until(is_true: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_true():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
