"""Token ids of usual answer words and of letters in OpenAI's encodings: an audit needs no 42 MB vocabulary.

A test compares it with the vocabularies of ``bpe-openai``.
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
    "A": ((32, 355), (32, 362)),
    "B": ((33, 418), (33, 426)),
    "C": ((34, 363), (34, 356)),
    "D": ((35, 415), (35, 423)),
    "E": ((36, 457), (36, 469)),
    "F": ((37, 454), (37, 435)),
    "G": ((38, 499), (38, 480)),
    "H": ((39, 487), (39, 473)),
    "I": ((40, 357), (40, 358)),
    "J": ((41, 643), (41, 622)),
    "K": ((42, 658), (42, 735)),
    "L": ((43, 451), (43, 445)),
    "M": ((44, 391), (44, 386)),
    "N": ((45, 478), (45, 452)),
    "O": ((46, 532), (46, 507)),
    "P": ((47, 398), (47, 393)),
    "Q": ((48, 1486), (48, 1229)),
    "R": ((49, 460), (49, 432)),
    "S": ((50, 336), (50, 328)),
    "T": ((51, 353), (51, 350)),
    "U": ((52, 601), (52, 549)),
    "V": ((53, 631), (53, 650)),
    "W": ((54, 486), (54, 468)),
    "X": ((55, 2127), (55, 1630)),
    "Y": ((56, 865), (56, 816)),
    "Z": ((57, 1489), (57, 1901)),
}
IDS: dict[str, dict[str, int]] = {
    encoding: {
        space + spelling: number
        for spelling, ids in _TABLE.items()
        for space, number in zip(("", " "), ids[k], strict=True)
    }
    for k, encoding in enumerate(ENCODINGS)
}
