"""Run the blocks of one page in order, in this process's folder; stops at the first that fails.

Usage: run_doc_page.py FILE, a JSON list of ``{place, language, code, marks}``. Python blocks share
their variables, as a reader's session would; each block of the shell is a bash of its own.
"""

import contextlib
import io
import json
import math
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: Numbers of documented output may differ by this from what another processor computes.
TOLERANCE = 2e-3
_NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")
_PART = re.compile(rf"(?P<number>{_NUMBER.pattern})|(?P<any>…)|(?P<space>\s+)")


def main() -> None:
    variables: dict[str, Any] = {"__name__": "__main__"}
    output = ""
    for block in json.loads(Path(sys.argv[1]).read_text()):
        try:
            output = run(block, variables, output)
        except BaseException as error:  # noqa: BLE001 (whatever a block raises fails its page)
            sys.exit(f"{block['place']}: {type(error).__name__}: {error}")


def run(block: dict[str, Any], variables: dict[str, Any], last_output: str) -> str:
    """What the block wrote; an ``output`` block is compared with what the last one wrote."""
    match block["language"]:
        case "python":
            return run_python(block, variables)
        case "sh":
            folder = ROOT / block["marks"]["in"] if "in" in block["marks"] else None
            return run_shell(block["code"], fails="fails" in block["marks"], folder=folder)
        case "json":
            return post(block["marks"]["post"], block["code"])
        case _:
            compare(block["code"], last_output)
            return last_output


def run_python(block: dict[str, Any], variables: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(block["code"], block["place"], "exec"), variables)
    return output.getvalue()


def run_shell(code: str, *, fails: bool, folder: Path | None) -> str:
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", code],
        check=False,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if (done.returncode != 0) != fails:
        raise RuntimeError(f"status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def post(url: str, body: str) -> str:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, body.encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{error.code} {error.read().decode()}") from None


def compare(expected: str, got: str) -> None:
    """Raise unless ``got`` is ``expected`` but for spaces, ``…`` and last digits of numbers."""
    expected = expected.strip()
    pattern, end = "", 0
    for part in _PART.finditer(expected):
        pattern += re.escape(expected[end : part.start()])
        pattern += f"({_NUMBER.pattern})" if part["number"] else ".*?" if part["any"] else r"\s+"
        end = part.end()
    found = re.fullmatch(pattern + re.escape(expected[end:]), got.strip(), re.DOTALL)
    if found is None or not all(map(is_near, _NUMBER.findall(expected), found.groups())):
        raise ValueError(f"the page says\n{expected}\nbut the output is\n{got}")


def is_near(expected: str, got: str) -> bool:
    return math.isclose(float(expected), float(got), rel_tol=TOLERANCE, abs_tol=TOLERANCE)


if __name__ == "__main__":
    main()
