"""The table of ``blindcal.endpoints.openai_token_ids``, made anew from OpenAI's published vocabularies.

python bench/openai_ids.py
"""

from __future__ import annotations

import warnings

from blindcal.endpoints.openai_token_ids import ENCODINGS, table


def main() -> None:
    """Print it, ready to be pasted and formatted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the library's own way to open its data
        import bpe_openai

        for name in ENCODINGS:
            print(f'    "{name}": {table(bpe_openai.get_encoding(name).encode)},')


if __name__ == "__main__":
    main()
