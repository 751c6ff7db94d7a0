"""Write the versions installed in this environment as a constraints file.

Local version labels (torch's ``+cpu``) are left off, so that the file fits every build.
Usage: write_lock.py FILE
"""

import sys
from importlib.metadata import distributions
from pathlib import Path

#: Not part of what a deployment installs.
SKIPPED = {"triptych", "pip", "setuptools", "wheel"}


def main() -> None:
    pins = {
        each.metadata["Name"].lower().replace("_", "-"): each.version.partition("+")[0]
        for each in distributions()
    }
    lines = [f"{name}=={pins[name]}" for name in sorted(pins.keys() - SKIPPED)]
    header = "# Every package of the environment that uses this file; written by `make lock`.\n"
    Path(sys.argv[1]).write_text(header + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
