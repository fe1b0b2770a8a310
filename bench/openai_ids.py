"""Make the table of ``blindcal.endpoints.openai_token_ids`` from OpenAI's published vocabularies.

python bench/openai_ids.py
"""

from __future__ import annotations

from blindcal.endpoints.openai_token_ids import ENCODINGS, SPELLED
from blindcal.endpoints.tokens import vocabulary


def main() -> None:
    """Print the table, ready to be pasted and formatted."""
    for spelling in SPELLED:
        print(f'    "{spelling}": {tuple(_ids(encoding, spelling) for encoding in ENCODINGS)},')


def _ids(encoding: str, spelling: str) -> tuple[int, int]:
    (plain,), (spaced,) = (vocabulary(encoding).encode(text) for text in (spelling, f" {spelling}"))
    return plain, spaced


if __name__ == "__main__":
    main()
