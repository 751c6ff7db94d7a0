"""``python -m support.build_stages FOLDER NAME…``: the Dockerfile's environments, built here.

Runs the COPY and RUN instructions of each stage ``NAME-environment`` on this machine, with /src and
/opt/triptych inside FOLDER/NAME, and prints how long that took and how large the environment is.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from support.dockerfile import Stage, lineage, read_env, read_stages

ROOT = Path(__file__).parents[2]


def main(folder: str, *names: str) -> None:
    for name in names:
        start = time.monotonic()
        environment = build(name, Path(folder).resolve() / name)
        seconds = time.monotonic() - start
        print(f"{name}: {megabytes(environment)} MB in {seconds:.0f} s")  # noqa: T201


def build(name: str, folder: Path) -> Path:
    """The environment of image ``name``, made in ``folder``, which must not exist yet."""
    (folder / "src").mkdir(parents=True)
    stages = read_stages(ROOT / "deploy" / "Dockerfile")
    variables: dict[str, str] = {}
    for stage in lineage(stages, f"{name}-environment"):
        variables |= read_env(stage.texts("ENV"))
        _run(stage, folder, variables)
    return folder / "environment"


def megabytes(folder: Path) -> int:
    files = (path.lstat() for path in folder.rglob("*"))
    return sum(each.st_size for each in files) // 10**6


def _run(stage: Stage, folder: Path, variables: dict[str, str]) -> None:
    places = {"/opt/triptych": str(folder / "environment"), "/src": str(folder / "src")}

    def here(text: str) -> str:
        for place, real in places.items():
            text = text.replace(place, real)
        return text

    here_variables = {key: here(value) for key, value in variables.items()}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for keyword, text in stage.instructions:
        if keyword == "COPY":
            *sources, target = text.split()
            _copy(sources, folder / "src" / target)
        if keyword == "RUN":
            command = text.removeprefix("--mount=type=cache,target=/root/.cache/pip ")
            subprocess.run(
                ["sh", "-ec", here(command)],
                check=True,
                cwd=folder / "src",
                env={**os.environ, **here_variables, "PATH": path},
            )


def _copy(sources: list[str], target: Path) -> None:
    for source in sources:
        if (ROOT / source).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / source, target, ignore=ignored)
        else:
            place = target if target.suffix else target / source.rpartition("/")[2]
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, place)


if __name__ == "__main__":
    main(*sys.argv[1:])
