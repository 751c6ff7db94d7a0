"""Starts services as forks of one process that has imported everything: a restart takes no seconds.

Run as ``python -m support.nursery``. A line of standard input is ``{"args": […], "log": PATH}``,
the arguments of ``triptych``; the answer is the process id. All end with this process.
"""

import ctypes
import importlib
import json
import os
import signal
import sys

from triptych_cli.main import COMMANDS
from triptych_cli.main import main as triptych

_PR_SET_PDEATHSIG = 1


def main() -> None:
    for name in ("render", "generate", "derender", "gateway"):
        importlib.import_module(COMMANDS[name].module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children that end are nobody's zombies
    print("ready", flush=True)  # noqa: T201  # the protocol
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run(order["args"], order["log"])
        print(pid, flush=True)  # noqa: T201


def _run(args: list[str], log: str) -> None:
    """The child, to its end."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    status = 1
    try:
        status = triptych(args)
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
