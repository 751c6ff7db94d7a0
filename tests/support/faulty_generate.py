"""``triptych generate`` whose steps a test holds or breaks.

Run as ``python -m support.faulty_generate FOLDER flags…``. Steps of sequences with output wait
while FOLDER has a file ``hold``, and say so by a file ``held``; all fail once there is ``fail``.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from support.generate_runs import load_faulty
from triptych import logs
from triptych.errors import SetupError
from triptych.serving import run_service
from triptych.settings import parse_settings
from triptych_generate.__main__ import create_generate_service, engine_options
from triptych_generate.scheduler import Plan
from triptych_generate.settings import GenerateSettings


def fault_of(folder: Path) -> Callable[[Plan], None]:
    def fault(plan: Plan) -> None:
        has_output = any(part.sequence.num_output for part in plan.slices)
        while has_output and (folder / "hold").exists():
            (folder / "held").touch()
            time.sleep(0.005)
        if (folder / "fail").exists():
            raise RuntimeError("the test breaks this step")

    return fault


def main(folder: str, *args: str) -> int:
    settings = parse_settings(GenerateSettings, list(args))
    logs.configure(settings.log_level)
    service = load_faulty(engine_options(settings), fault_of(Path(folder)))
    try:
        return run_service(lambda: create_generate_service(service, settings), settings)
    except SetupError as error:
        print(f"faulty generate: {error}", file=sys.stderr)  # noqa: T201  # it is a command
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
