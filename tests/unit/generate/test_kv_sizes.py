"""KV memory: what fits is taken, what does not is refused with the size that is needed."""

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.generate_runs import load_service
from triptych.errors import SetupError
from triptych_generate.kv_sizes import KvSizes, kv_sizes, needed_gb
from triptych_generate.memory import container_bytes, free_bytes
from triptych_generate.options import EngineOptions

#: Bytes of a block of 64 tokens of the tests' llama: 2 layers x 2 heads x (16 + 16) float32.
TINY_BLOCK = 64 * 128 * 4
MB, GB = 10**6, 10**9


def sizes(*, free: int = 100 * GB, **options: Any) -> KvSizes:
    """For a model of 1,000 positions with blocks of 1 MB, 64 tokens each."""
    given = EngineOptions(model_dir=Path(), served_model_name="m", **options)
    return kv_sizes(given, max_positions=1000, bytes_per_block=MB, free_bytes=free)


@pytest.mark.parametrize(
    ("options", "free", "expected"),
    [
        ({}, 100 * GB, KvSizes(1024, 1000)),  # 64 sequences of 16 blocks: more is of no use
        ({}, 1 * GB, KvSizes(500, 1000)),  # half of the free memory
        ({}, 20 * MB, KvSizes(10, 640, cut_from=1000)),
        ({"kv_cache_bytes": 16 * MB}, 100 * GB, KvSizes(16, 1000)),
        ({"kv_cache_bytes": 3 * MB}, 100 * GB, KvSizes(3, 192, cut_from=1000)),
        ({"max_model_len": 100}, 4 * MB, KvSizes(2, 100)),
        ({"device": "cuda"}, 1 * GB, KvSizes(800, 1000)),
    ],
)
def test_sizes_follow_settings_and_free_memory(
    options: dict[str, Any], free: int, expected: KvSizes
) -> None:
    assert sizes(free=free, **options) == expected


@pytest.mark.parametrize(
    ("options", "free", "needed"),
    [
        ({"kv_cache_bytes": MB - 1}, 100 * GB, "0.016"),  # not one block
        ({"kv_cache_bytes": 15 * MB, "max_model_len": 1000}, 100 * GB, "0.016"),
        ({"kv_cache_bytes": 2 * GB}, 1 * GB, "0.016"),  # more than there is
        ({"max_model_len": 512}, 10 * MB, "0.008"),
        ({}, MB, "0.016"),
    ],
)
def test_too_little_memory_is_refused_with_what_is_needed(
    options: dict[str, Any], free: int, needed: str
) -> None:
    with pytest.raises(SetupError, match=rf"tokens needs {re.escape(needed)} GB"):
        sizes(free=free, **options)


def test_context_over_the_models_is_refused() -> None:
    with pytest.raises(SetupError, match="1,001, but the model has 1,000 positions"):
        sizes(max_model_len=1001)


@given(max_model_len=st.integers(1, 1000), free=st.integers(1, GB))
def test_what_a_refusal_says_is_needed_is_enough(max_model_len: int, free: int) -> None:
    try:
        given = sizes(free=free, max_model_len=max_model_len)
    except SetupError as refused:
        (needed,) = re.findall(r"needs (\S+) GB", str(refused))
        given = sizes(max_model_len=max_model_len, kv_cache_bytes=int(float(needed) * 1e9))
    assert given.max_model_len == max_model_len


@given(st.integers(1, 2**50))
def test_needed_gb_is_never_too_little_and_hardly_too_much(num_bytes: int) -> None:
    given = round(float(needed_gb(num_bytes)) * 1e9)
    assert num_bytes <= given <= num_bytes * 1.011 + 1


@pytest.mark.skipif(
    sys.platform != "linux", reason="compares with /proc/meminfo, which Linux alone has"
)
def test_free_memory_is_what_a_process_can_have() -> None:
    total = int(re.findall(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[0]) * 1024
    assert 0 < free_bytes(torch.device("cpu")) < total


@pytest.mark.parametrize(
    ("limit", "free"), [("8000", 8000 - 7000 + 3000), ("2000", 0), ("max", sys.maxsize)]
)
def test_page_cache_of_a_container_is_free(limit: str, free: int, tmp_path: Path) -> None:
    """After weights were read, their pages count as used, as long as nothing else needs them."""
    assert container_bytes(tmp_path) == sys.maxsize
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("7000\n")
    (tmp_path / "memory.stat").write_text("anon 3900\nfile 3100\ninactive_file 3000\n")
    assert container_bytes(tmp_path) == free


def test_default_cache_holds_one_sequence_of_full_length(
    tiny_dir: Callable[[str], Path],
) -> None:
    service = load_service(tiny_dir("llama"), kv_cache_bytes=None)
    assert service.limits.max_model_len == 512


def test_cut_context_is_what_the_cache_holds_and_said_with_what_all_needs(
    tiny_dir: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        service = load_service(tiny_dir("llama"), kv_cache_bytes=3 * TINY_BLOCK)
    assert service.limits.max_model_len == 192
    assert "from 512 to 192 tokens" in caplog.text
    assert f"--kv-cache-gb {needed_gb(8 * TINY_BLOCK)}" in caplog.text


def test_start_with_too_little_is_one_line(tiny_dir: Callable[[str], Path]) -> None:
    command = [sys.executable, "-m", "triptych_cli", "generate", f"--model={tiny_dir('llama')}"]
    command += ["--kv-cache-gb=0.00001", "--log-level=error"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    needed = needed_gb(8 * TINY_BLOCK)
    assert done.stderr.count("\n") == 1
    assert f"a context of 512 tokens needs {needed} GB" in done.stderr
