"""The kernels compile for GPUs, whether or not one is here, and use the products meant for them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
#: Shared memory that a program may have on every GPU since sm_80.
MOST_SHARED_BYTES = 99 * 1024


@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile(capability: int, tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-m", "support.compile_kernels", str(capability)],
        cwd=TESTS,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(kernels) == 10
    for kernel in kernels:
        assert kernel["binary_bytes"] > 0
        assert kernel["shared_bytes"] <= MOST_SHARED_BYTES
        has_products = kernel["kernel"] in ("attend", "product") and kernel["dtype"] == "bf16"
        # float32 has none: tensor cores would round it to tf32.
        bf16 = ["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"]
        assert kernel["products"] == (bf16 if has_products else [])
