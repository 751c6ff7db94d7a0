"""``python -m support.compile_kernels``: compile the Triton kernels for a kind of GPU.

Prints one JSON line per kernel and dtype: shared memory in bytes, and the product instructions.
"""

import json
import re
import sys
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from triptych_generate import triton_attention, triton_ops

DTYPES = {"fp32": tl.float32, "bf16": tl.bfloat16}
HEAD_DIM = 64


def main(capability: int) -> None:
    for dtype, operand in DTYPES.items():
        for name, kernel, pointers, constants in kernels(dtype, operand):
            print(json.dumps(compiled(name, dtype, kernel, pointers, constants, capability)))  # noqa: T201


def kernels(dtype: str, operand: tl.dtype) -> list[tuple[str, Any, dict[str, str], dict[str, Any]]]:
    data, floats, ints = f"*{dtype}", "*fp32", "*i32"
    shape = {
        "HEADS": 9,
        "GROUP": 3,
        "PADDED_GROUP": 4,
        "QUERIES": 32,
        "BLOCK": 64,
        "SPLIT": 8,
        "VALUE_DIM": HEAD_DIM,
        "PADDED_VALUE_DIM": HEAD_DIM,
    }
    keys = {"KEY_DIM": HEAD_DIM, "PADDED_KEY_DIM": HEAD_DIM, "OPERAND": operand}
    scratch = {"tiles": ints, "tops": floats, "totals": floats, "parts": floats, "out": data}
    inputs = {"query": data, "keys": data, "values": data, "tables": ints, **scratch}
    inputs |= {"scaling": "fp32", "softcap": "fp32"}
    tile = {"ROWS": 32, "COLUMNS": 64, "INNER": 32, "OPERAND": operand, "HAS_BIAS": True}
    matrices = {"left": data, "right": data, "bias": data, "out": data}
    rows = {"values": data, "out": data}
    return [
        ("attend", triton_attention._attend, inputs, {**shape, **keys, "HAS_SOFTCAP": True}),
        (
            "join",
            triton_attention._join,
            {**scratch, "sinks": floats},
            {**shape, "HAS_SINKS": True},
        ),
        ("product", triton_ops._product, matrices, tile),
        ("row_mean", triton_ops._row_mean, rows, {"CHUNK": 1024}),
        ("row_log_softmax", triton_ops._row_log_softmax, rows, {"CHUNK": 1024}),
    ]


def compiled(
    name: str,
    dtype: str,
    kernel: Any,
    pointers: dict[str, str],
    constants: dict[str, Any],
    capability: int,
) -> dict[str, Any]:
    signature = {
        argument: "constexpr" if argument in constants else pointers.get(argument, "i32")
        for argument in kernel.arg_names
    }
    places = {(kernel.arg_names.index(key),): value for key, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=places)
    result = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    ptx = result.asm["ptx"]
    return {
        "kernel": name,
        "dtype": dtype,
        "shared_bytes": result.metadata.shared,
        "products": sorted(set(re.findall(r"wgmma|tcgen05|mma\.sync\.aligned\.[\w.]+", ptx))),
        "binary_bytes": len(result.asm["cubin"]),
    }


if __name__ == "__main__":
    main(int(sys.argv[1]))
