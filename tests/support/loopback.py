"""The fallback where no network namespaces can be made: each replica at an address 127.x.y.z.

Ports, flags and health checks stay those of the file. What cannot stay is replaced: the address
to listen on, a service's name by the list of its replicas, and a volume's place by its directory.
There is no read-only root and no other user.
"""

import itertools
import os
import random
import subprocess
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from support.compose_file import ComposeService
from support.containers import Container


def addresses() -> Iterator[str]:
    """Addresses of 127/8 that another fleet is unlikely to have."""
    numbers = random.Random(os.urandom(8))
    base = f"127.{numbers.randrange(16, 250)}.{numbers.randrange(1, 250)}"
    return (f"{base}.{number}" for number in itertools.count(1))


def start_process(
    service: ComposeService,
    *,
    argv: list[str],
    environment: dict[str, str],
    address: str,
    names: dict[str, list[str]],
    log: BinaryIO,
) -> Container:
    """``argv`` as a process at ``address``; ``names`` are the addresses of each service."""

    def here(value: str) -> str:
        name, colon, port = value.partition(":")
        if colon and name in names:
            return ",".join(f"{each}:{port}" for each in names[name])
        for mount in service.mounts:
            if value == mount.target or value.startswith(mount.target + "/"):
                return mount.source + value.removeprefix(mount.target)
        return address if value == "0.0.0.0" else value

    variables = {name: here(value) for name, value in environment.items()}
    process = subprocess.Popen(
        [here(each) for each in argv],
        env={**variables, "PATH": os.environ["PATH"]},
        stdout=log,
        stderr=log,
        stdin=subprocess.DEVNULL,
    )
    return Container(process, address, variables, service.user)


def run_beside(container: Container, argv: Sequence[str], *, timeout_s: float) -> bool:
    """Whether a health check ends well, asked at the replica's address."""
    command = [each.replace("127.0.0.1", container.address) for each in argv]
    try:
        done = subprocess.run(command, check=False, capture_output=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
