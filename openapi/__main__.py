"""Write the documents into shared/triptych/openapi, or check that they are current (--check)."""

import argparse
import json
import sys

from openapi.document import ROOT, document
from openapi.services import SERVICES

OUTPUT = ROOT / "shared" / "triptych" / "openapi"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the committed files differ")
    made = {
        f"{name}.json": json.dumps(document(name, api()), indent=1, ensure_ascii=False) + "\n"
        for name, api in SERVICES.items()
    }
    if not parser.parse_args().check:
        OUTPUT.mkdir(exist_ok=True)
        for name, text in made.items():
            (OUTPUT / name).write_text(text)
        return 0
    there = {path.name: path.read_text() for path in OUTPUT.glob("*.json")}
    stale = sorted(name for name in made.keys() | there if made.get(name) != there.get(name))
    if stale:
        sys.stderr.write(f"stale OpenAPI documents, run `make openapi`: {', '.join(stale)}\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
