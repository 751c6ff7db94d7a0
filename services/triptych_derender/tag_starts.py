"""With which characters the tags of a response template can begin.

Text that has none of them begins no tag, however it is cut, so nothing has to look for one in it.
"""

import re
from collections.abc import Iterator, Sequence

#: An escaped character, a set, or any other single one.
_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
#: Flags, comments and named sets, which are not read here.
_SPECIAL = re.compile(r"\(\?[a-z#-]|\[:")
_AT_BEGINNING = re.compile(r"\\A(?![?*{])")
#: A literal character that no quantifier after it makes optional.
_LITERAL = re.compile(r"(?:\\([^\w\s])|([^\W_]|[<>`]))(?![?*{])")


def first_characters(pattern: str, literals: Sequence[str] | None) -> frozenset[str] | None:
    """First characters of a delimiter before which the output has some text.

    Args:
        pattern: a regular expression.
        literals: what it stands for, if that is no more than some literals.

    Returns:
        None where it may begin with anything, as far as this can tell.
    """
    if literals:
        return frozenset(literal[0] for literal in literals)
    if _SPECIAL.search(pattern):
        return None
    starts = set()
    for alternative in _alternatives(pattern):
        if _AT_BEGINNING.match(alternative):
            continue  # only where the output begins
        match = _LITERAL.match(alternative)
        if match is None:
            return None
        starts.add(match[1] or match[2])
    return frozenset(starts)


def _alternatives(pattern: str) -> list[str]:
    """The alternatives of ``pattern``, or of the group that it begins with."""
    parts, group_end = _split(pattern)
    if len(parts) > 1 or not pattern.startswith("(?:"):
        return parts
    if pattern[group_end : group_end + 1] in ("?", "*", "{"):
        return parts
    return _split(pattern[len("(?:") : group_end - 1])[0]


def _split(pattern: str) -> tuple[list[str], int]:
    """``pattern`` cut at its outermost bars, and where its first group ends."""
    parts, first_end = [""], 0
    for atom, end, depth in _atoms(pattern):
        if atom == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += atom
        if atom == ")" and not depth and not first_end:
            first_end = end
    return parts, first_end


def _atoms(pattern: str) -> Iterator[tuple[str, int, int]]:
    """Each atom, where it ends, and how many groups are open after it."""
    depth = 0
    for match in _ATOM.finditer(pattern):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        yield match[0], match.end(), depth
