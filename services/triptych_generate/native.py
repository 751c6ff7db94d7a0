"""The engine's kernels for the CPU: C++ in ``kernels/``, compiled once for this machine.

A kernel's results do not depend on the batch: every output element is one chain of fused
multiply-adds in a fixed order. They are compiled at ``make install`` or at the first start, in
about half a minute, into the cache directory. Without a C++ compiler the engine computes the same
things in torch operators, more slowly (``linears``, ``torch_attention``).
"""

import functools
import hashlib
import importlib.util
import logging
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.cpp_extension import include_paths, library_paths

from triptych.settings import cache_directory

_log = logging.getLogger(__name__)

_NAME = "triptych_kernels"
_SOURCES = Path(__file__).parent / "kernels"
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = (
    *("-std=c++20", "-O3", "-march=native", "-ffp-contract=fast"),
    *("-fopenmp", "-fPIC", "-shared", f"-DTORCH_EXTENSION_NAME={_NAME}"),
)
_LIBRARIES = ("-lc10", "-ltorch_cpu", "-ltorch_python")
_DTYPES = frozenset({torch.float32, torch.bfloat16})


class Kernels(Protocol):
    """The compiled module. Tensors are float32 or bfloat16 on the CPU; sums are float32."""

    def pack_weight(self, weight: Tensor) -> Tensor:
        """What ``linear`` takes, from ``[features, depth]``."""

    def linear(
        self,
        x: Tensor,
        packed: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        features: int,
        gated: bool,  # compiled calls take no keywords
    ) -> Tensor:
        """``x @ weight.T + bias + residual``, ``[…, features]`` from ``[…, depth]``.

        ``gated``: features come as 16 gates, 16 values, and so on; the result has half of them,
        ``silu(gate) * value``.
        """

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        keys: Tensor,
        values: Tensor,
        slots: Tensor,
        tables: Tensor,
        tiles: Tensor,
        scaling: float,
        window: int,
        softcap: float,
        sinks: Tensor | None,
    ) -> Tensor:
        """Store new keys and values, then attend: ``[rows, heads, value_dim]``.

        Args:
            query: ``[heads, rows, dim]``, the last dimension contiguous.
            key: ``[kv_heads, rows, dim]``, likewise.
            value: ``[kv_heads, rows, value_dim]``, likewise.
            keys: one layer's pool, as in ``KvCache``; blocks hold a multiple of 16 tokens.
            values: the pool of values; ``value_dim`` is a multiple of 16.
            slots: int32, ``block * block_size + offset`` of each row; later rows are padding, and
                come out zero.
            tables: int32 ``[sequences, blocks]``.
            tiles: int32 ``[tiles, 4]``: first row, number of rows, row of ``tables``, and position
                of the first row; a tile's rows are consecutive positions.
            scaling: factor of the queries.
            window: how many tokens back a query sees, itself included; 0: all.
            softcap: 0: none.
            sinks: float32 ``[heads]``.
        """

    def score(
        self, logits: Tensor, own: Tensor, count: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The fields of ``ranking.Survey``, from contiguous float32 logits and int64 ids."""

    def top(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The greatest of each row, and the lowest id that has it, ``[rows]`` each.

        From contiguous ``[rows, vocab]``; a row with NaN has NaN, and no id that means anything.
        """

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """``x / rms(x) * weight`` over the last dimension.

        ``x`` is ``[rows, heads, dim]`` by any strides, or of any shape and contiguous.
        """

    def PackedLinear(self, packed: Tensor, bias: Tensor | None, features: int) -> Any:  # noqa: N802
        """A linear layer, for ``Layer``."""

    def Norm(self, weight: Tensor, eps: float) -> Any:  # noqa: N802
        """A root mean square norm, for ``Layer``."""

    def Layer(  # noqa: N802
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        input_norm: Any,
        mlp_norm: Any,
        query_norm: Any,
        key_norm: Any,
        qkv: Any,
        output: Any,
        gate_up: Any,
        down: Any,
    ) -> "LayerHalves":
        """A decoder layer; norms of query and key may be None.

        ``qkv`` gives queries, keys and values one after another; ``gate_up`` is a gated layer.
        """

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Rotary embedding of ``x`` ``[rows, heads, dim]`` in place, halves against each other.

        ``cos`` and ``sin`` are ``[rows, dim]``, contiguous.
        """


class LayerHalves(Protocol):
    """A decoder layer of the llama shape without its attention."""

    def before(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, ``[heads, rows, head_dim]`` each.

        From hidden states ``[1, rows, hidden]``; ``cos`` and ``sin`` are ``[1, rows, head_dim]``.
        """

    def after(self, attended: Tensor, hidden: Tensor, kept: Tensor | None) -> Tensor:
        """Hidden states ``[1, rows, hidden]`` from the same and ``[rows, heads, head_dim]``.

        ``kept``: int64, the rows to compute; None: all.
        """


def kernels_for(device: torch.device, dtype: torch.dtype) -> Kernels | None:
    """The kernels, where there are any for ``device`` and ``dtype``."""
    return load_kernels() if device.type == "cpu" and dtype in _DTYPES else None


@functools.cache
def load_kernels() -> Kernels | None:
    """The compiled kernels; None, with the reason in the log, where they cannot be compiled."""
    try:
        module: Kernels = _import(_compiled())
    except (OSError, ImportError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or str(error)
        _log.warning(
            "the CPU kernels cannot be compiled, so the engine runs at a fraction of its speed; "
            "a C++ compiler (g++) and Python's headers are needed: %s",
            reason.strip()[:500],
        )
        return None
    return module


def _compiled() -> Path:
    """The compiled file for this machine, torch and source; made now if it is missing."""
    folder = cache_directory() / "kernels" / _fingerprint()
    target = folder / f"{_NAME}.so"
    if target.exists():
        return target
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise FileNotFoundError(f"none of {', '.join(_COMPILERS)} is on the path")
    _log.info("compiling the CPU kernels for this machine, once; about half a minute")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / target.name
        subprocess.run(  # our own source, a compiler from the path
            [compiler, *_FLAGS, *_paths(), str(_SOURCES / "kernels.cpp"), "-o", made, *_LIBRARIES],
            check=True,
            capture_output=True,
            text=True,
        )
        made.replace(target)
    return target


def _paths() -> list[str]:
    headers = [*include_paths(), sysconfig.get_path("include")]
    return [
        *(part for path in headers for part in ("-isystem", path)),
        *(f"-L{path}" for path in library_paths()),
    ]


def _fingerprint() -> str:
    """Changes with the source, torch, Python and the processor, whose instructions are used."""
    digest = hashlib.sha256()
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.read_bytes())
    parts = (*_FLAGS, torch.__version__, sys.version, _processor())
    digest.update("\0".join(parts).encode())
    return digest.hexdigest()[:16]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "".join(sorted({line for line in lines if line.startswith(wanted)}))


def _import(path: Path) -> Kernels:
    spec = importlib.util.spec_from_file_location(_NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no extension module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernels: Kernels = module
    return kernels


if __name__ == "__main__":
    sys.exit(0 if load_kernels() is not None else 1)
