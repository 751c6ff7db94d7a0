"""Install torch, but never gigabytes of CUDA libraries on a machine without an NVIDIA GPU.

Asks pip what it would install. Where that includes CUDA packages and no GPU is there, it stops and
says how to point pip at a CPU build. Usage: install_torch.py REQUIREMENT
"""

import json
import os
import subprocess
import sys
from pathlib import Path

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
CUDA_PREFIXES = ("nvidia-", "cuda-", "triton")


def main() -> int:
    requirement = sys.argv[1]
    index = os.environ.get("TORCH_INDEX")
    # beside the default one, which has the lock's versions of what torch needs; of torch itself,
    # 2.13.0+cpu goes before 2.13.0
    where = ["--extra-index-url", index] if index else []
    if is_installed(requirement):
        return 0
    if not has_gpu() and (cuda := cuda_packages([*where, requirement])):
        sys.stderr.write(
            f"{requirement} from this index brings {len(cuda)} CUDA packages (gigabytes), and no "
            f"NVIDIA GPU is here.\nGive an index with CPU builds (PyTorch's installation page "
            f"names it): make install TORCH_INDEX=URL\n"
        )
        return 1
    return subprocess.run([*PIP, "install", *where, requirement], check=False).returncode


def is_installed(requirement: str) -> bool:
    name, _, wanted = requirement.partition("==")
    shown = subprocess.run([*PIP, "show", name], check=False, capture_output=True, text=True)
    return f"Version: {wanted}" in shown.stdout


def has_gpu() -> bool:
    return Path("/proc/driver/nvidia/version").exists()


def cuda_packages(arguments: list[str]) -> list[str]:
    """Names of the CUDA packages that pip would install; nothing is installed."""
    command = [*PIP, "install", "-q", "--dry-run", "--ignore-installed", "--report", "-"]
    report = subprocess.run([*command, *arguments], check=True, stdout=subprocess.PIPE).stdout
    names = [entry["metadata"]["name"].lower() for entry in json.loads(report)["install"]]
    return [name for name in names if name.startswith(CUDA_PREFIXES)]


if __name__ == "__main__":
    sys.exit(main())
