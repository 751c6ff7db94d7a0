"""The GPU check itself: at small scale on the CPU, and without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

CHECK = Path(__file__).with_name("check.py")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, CHECK, *arguments],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )


def test_check_runs_every_situation_and_the_speed_table() -> None:
    done = run("--device", "cpu", "--quick")
    assert done.returncode == 0, done.stderr
    verdict, line = done.stdout.splitlines()
    assert verdict == "verdict: the same bits in every situation"
    report = json.loads(line)
    assert report["model"] == "random-weights"
    assert set(report["invariance"]) == set(report["speed"]) == {"float32", "bfloat16"}
    for dtype in ("float32", "bfloat16"):
        assert len(report["invariance"][dtype]) == 7
        assert len(report["speed"][dtype]) == 4
        assert report["first_token_ms"][dtype] > 0


def test_check_says_in_one_line_that_no_gpu_is_here() -> None:
    done = run()
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout == "no CUDA device here: nothing was checked\n"
