"""``os.environ`` is read in one place: the settings."""

import re
from pathlib import Path

import triptych

ROOT = Path(triptych.__file__).parents[2]
#: They write a variable for a library before it is imported, and read none.
ALLOWED = {"services/triptych_cli/prepare.py", "shared/triptych/import_settings.py"}


def test_environment_is_read_by_the_settings_alone() -> None:
    sources = [
        path
        for folder in ("services", "shared")
        for path in (ROOT / folder).rglob("*.py")
        if "shared/triptych/v1" not in path.as_posix()
    ]
    readers = {
        path.relative_to(ROOT).as_posix()
        for path in sources
        if re.search(r"os\.(environ|getenv)", path.read_text())
    }
    assert len(sources) > 40
    assert readers - ALLOWED == set()
