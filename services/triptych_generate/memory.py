"""Memory: how much of it is free, and whether an error says that it ran out."""

import os
import sys
from pathlib import Path

import torch

#: Of a container (cgroup v2), in bytes: limit, which may be the word "max", and use.
_CGROUP = Path("/sys/fs/cgroup")
#: How torch's CPU allocator says so: by a plain RuntimeError.
_CPU_MESSAGE = "DefaultCPUAllocator: "


def free_bytes(device: torch.device) -> int:
    """Bytes that ``device`` can still give: of a container, what its limit leaves."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    if sys.platform != "linux":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(_available_bytes(), container_bytes())


def container_bytes(folder: Path = _CGROUP) -> int:
    """What a container's limit leaves it; page cache that can be given up is free."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:
        return sys.maxsize
    if limit == "max":
        return sys.maxsize
    return max(int(limit) - used + int(counts["inactive_file"]), 0)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that memory ran out, of Python, the CPU's allocator or the GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _CPU_MESSAGE in str(error)


def release_cached() -> None:
    """Give back what torch's GPU allocator keeps for later."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _available_bytes() -> int:
    """``MemAvailable``: free pages and the page cache that can be given up."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, value = line.split(":")
        if name == "MemAvailable":
            return int(value.removesuffix("kB")) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
