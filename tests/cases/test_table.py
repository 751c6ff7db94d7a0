"""The table in README.md names tests that exist."""

import re
from pathlib import Path

_TESTS = Path(__file__).parents[1]
#: A file, or a function, of the same file as before where none is named.
_NAMED = re.compile(r"`([\w/]+\.py)?(?:::(\w+))?`")


def test_every_test_that_the_table_names_exists() -> None:
    rows = (_TESTS / "cases" / "README.md").read_text().splitlines()
    num_functions = 0
    for row in rows:
        source = ""
        for file, function in _NAMED.findall(row):
            source = (_TESTS / file).read_text() if file else source
            num_functions += bool(function)
            assert not function or f"def {function}(" in source, function
    assert num_functions > 50
