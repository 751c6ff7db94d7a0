"""The whole product as a user starts it: `triptych serve` in processes of its own."""

import contextlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

START_TIMEOUT_S = 400
STOP_TIMEOUT_S = 60
#: Linux gives outgoing connections 32768 to 60999.
_PORTS = (12_000, 32_000)
#: Of its own: hypothesis seeds the module's, and then two processes would choose alike.
_random = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Stack:
    """Base addresses of a running stack, and its process."""

    gateway: str
    render: str
    generate: str
    derender: str
    render_grpc: str
    generate_grpc: str
    derender_grpc: str
    process: subprocess.Popen[bytes]
    log: Path


@contextlib.contextmanager
def running_stack(
    *extra_flags: str,
    threads: int = 1,
    log_level: str = "info",
    python: str = sys.executable,
) -> Iterator[Stack]:
    """A stack on free ports, serving the built-in model; ``python`` is one that has triptych."""
    names = ["http", "render-http", "generate-http", "derender-http"]
    names += ["render-grpc", "generate-grpc", "derender-grpc"]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    command = [python, "-m", "triptych_cli", "serve", f"--threads={threads}"]
    command += [f"--{name}-port={port}" for name, port in ports.items()]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, f"--log-level={log_level}", *extra_flags],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_for(log, process, "try:")
            yield Stack(
                gateway=f"http://127.0.0.1:{ports['http']}",
                render=f"http://127.0.0.1:{ports['render-http']}",
                generate=f"http://127.0.0.1:{ports['generate-http']}",
                derender=f"http://127.0.0.1:{ports['derender-http']}",
                render_grpc=f"127.0.0.1:{ports['render-grpc']}",
                generate_grpc=f"127.0.0.1:{ports['generate-grpc']}",
                derender_grpc=f"127.0.0.1:{ports['derender-grpc']}",
                process=process,
                log=log,
            )
        finally:
            stop(process)


@contextlib.contextmanager
def running_service(name: str, *flags: str) -> Iterator[str]:
    """The JSON address of one service in a process of its own."""
    http_port, grpc_port = free_ports(2)
    command = [sys.executable, "-m", "triptych_cli", name, *flags, "--log-level=info"]
    command += [f"--http-port={http_port}", f"--grpc-port={grpc_port}"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            wait_for(log, process, "serves on")
            yield f"http://127.0.0.1:{http_port}"
        finally:
            stop(process)


@contextlib.contextmanager
def running_gateway(stack: Stack, *, generate: str) -> Iterator[str]:
    """The address of a gateway of its own, between the stack's panels and another generate."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "triptych_cli", "gateway", f"--http-port={port}"]
    command += [f"--render={stack.render_grpc}", f"--derender={stack.derender_grpc}"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, f"--generate={generate}"], stdout=output, stderr=subprocess.STDOUT
            )
        try:
            wait_for(log, process, "serves on")
            yield f"http://127.0.0.1:{port}"
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGINT, and the end of ``process``; killed, which its return code says, after a bound."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_for(
    log: Path, process: subprocess.Popen[bytes], text: str, *, timeout_s: float = START_TIMEOUT_S
) -> None:
    """Wait until ``text`` is in the log; fails with the log if the process ends first."""
    deadline = time.monotonic() + timeout_s
    while text.encode() not in log.read_bytes():
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"the process did not come up:\n{log.read_text()}")
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now, below those that outgoing connections are given meanwhile."""
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(ports) < count:
            port = _random.randrange(*_PORTS)
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
    return ports
