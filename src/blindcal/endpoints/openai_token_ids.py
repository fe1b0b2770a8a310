"""Token ids of the usual answer words in OpenAI's encodings, so that an audit needs no 42 MB vocabulary.

``python bench/openai_ids.py`` prints the table from ``bpe-openai``; a test compares the two.
"""

from __future__ import annotations

WORDS = ("Yes", "No", "True", "False")
ENCODINGS = ("o200k_base", "cl100k_base")

# Per spelling and encoding: the id without and with a leading space.
_TABLE = {
    "Yes": ((13022, 11377), (9642, 7566)),
    "yes": ((6763, 14531), (9891, 10035)),
    "YES": ((31958, 32968), (14331, 14410)),
    "No": ((3160, 3004), (2822, 2360)),
    "no": ((1750, 860), (2201, 912)),
    "NO": ((14695, 9319), (9173, 5782)),
    "True": ((4710, 6432), (2575, 3082)),
    "true": ((3309, 1343), (1904, 837)),
    "TRUE": ((51138, 19894), (21260, 8378)),
    "False": ((8168, 7983), (4139, 3641)),
    "false": ((7556, 1485), (3934, 905)),
    "FALSE": ((75732, 19451), (31451, 7989)),
}
IDS: dict[str, dict[str, int]] = {
    encoding: {
        space + spelling: number
        for spelling, ids in _TABLE.items()
        for space, number in zip(("", " "), ids[k], strict=True)
    }
    for k, encoding in enumerate(ENCODINGS)
}
