"""Generate the protobuf code into shared/triptych/v1, or check that it is current (--check)."""

import argparse
import filecmp
import importlib.resources
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
OUTPUT = ROOT.parent / "shared"
PACKAGE = Path("triptych/v1")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the committed code differs")
    if not parser.parse_args().check:
        generate(OUTPUT)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        stale = differing(Path(folder) / PACKAGE, OUTPUT / PACKAGE)
    if stale:
        sys.stderr.write(f"stale protobuf code, run `make proto`: {', '.join(stale)}\n")
    return 1 if stale else 0


def generate(output: Path) -> None:
    """Write message, type stub and service code of every .proto below ``output``."""
    include = importlib.resources.files("grpc_tools") / "_proto"
    plugins = Path(sys.executable).parent
    protos = sorted(str(path.relative_to(ROOT)) for path in (ROOT / PACKAGE).glob("*.proto"))
    code = protoc.main(
        [
            "protoc",
            f"--plugin=protoc-gen-mypy={plugins}/protoc-gen-mypy",
            f"--plugin=protoc-gen-mypy_grpc={plugins}/protoc-gen-mypy_grpc",
            f"--proto_path={ROOT}",
            f"--proto_path={include}",
            f"--python_out={output}",
            f"--mypy_out={output}",
            f"--grpc_python_out={output}",
            f"--mypy_grpc_out={output}",
            *protos,
        ]
    )
    if code:
        raise SystemExit(code)
    (output / PACKAGE / "__init__.py").write_text('"""Generated from proto/triptych/v1."""\n')


def differing(fresh: Path, committed: Path) -> list[str]:
    """Names of files that differ between the two folders or exist in one only."""
    names = {path.name for folder in (fresh, committed) for path in folder.glob("*.py*")}
    _, different, missing = filecmp.cmpfiles(fresh, committed, sorted(names), shallow=False)
    return different + missing


if __name__ == "__main__":
    sys.exit(main())
