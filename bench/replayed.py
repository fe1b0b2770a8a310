"""Audits of recorded models over HTTP and from files, which must agree to the last digit.

    python bench/replayed.py [--only boolq]

The server answers from a real model's recorded logits as an opaque API would. `latent` audits all of BoolQ
and of binarised MMLU (by subject) with one query per item, seed 0.
"""

from __future__ import annotations

from record import Cell, parser, record, table

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import blindcal as bc
from blindcal.items import catalogue
from blindcal.items.record_format import RecordFormat
from blindcal.report.page import PAGE_FILE
from blindcal.reproduce import sources
from blindcal.reproduce.sources import Source
from blindcal.simulation import replay


@contextmanager
def served(source: Source, shared: Path) -> Iterator[bc.Settings]:
    """Serve a recorded model over HTTP, and yield the settings to audit it."""
    questions = catalogue.open_items(source.data, RecordFormat(data_dir=str(shared / "data")))
    with replay.running(replay.Server(source.recording, questions)) as server:
        yield bc.Settings(
            model=source.recording.name,
            base_url=server.base_url,
            data_dir=str(shared / "data"),
            positive_ids=(source.targets.positive[0].id,),
            negative_ids=(source.targets.negative[0].id,),
            send_seed=True,
            by_field="subject" if source.data == "mmlu" else None,
        )


def one_query(source: Source, shared: Path) -> list[Cell]:
    """`latent` with one query per item: the estimate, its interval, and whether `simulate` agrees."""
    begin = time.perf_counter()
    with served(source, shared) as settings, tempfile.TemporaryDirectory() as out:
        result = bc.audit(source.data, settings, out=out)
        took = time.perf_counter() - begin
        size = (Path(out) / PAGE_FILE).stat().st_size
    direct = bc.simulate("latent", source.labels, source.probabilities("pair"), repeats=1)
    ece = result.ece
    assert ece.low is not None
    assert ece.high is not None
    return [
        source.name,
        source.n,
        len(result.parts) or None,
        direct.oracle,
        float(ece),
        direct.estimates[0],
        "yes" if ece.value == direct.estimates[0] else "NO",
        (ece.low, ece.high),
        result.seconds,
        took - result.seconds,
        size / 1000,
    ]


ONE_QUERY = {
    "model and set": "{}",
    "items": "{:,}",
    "parts": "{}",
    "oracle": "{:.4f}",
    "over HTTP": "{:.6f}",
    "`simulate`": "{:.6f}",
    "equal": "{}",
    "95% interval": "{:.4f} to {:.4f}",
    "asked in": "{:.0f} s",
    "everything else": "{:.0f} s",
    "page": "{:,.0f} kB",
}


def main() -> None:
    """Audit each recorded model, and record the table."""
    options = parser(__doc__)
    options.add_argument("--only", default="", help="part of a file's name")
    arguments = options.parse_args()
    found = [
        sources.read(path)
        for path in sources.find([arguments.data / "logits"])
        if arguments.only in path.name
    ]
    audits = [one_query(source, arguments.data) for source in found]
    tables = {"one_query": table(ONE_QUERY, audits)}
    record("replayed", tables, arguments, repeats=1, seeds="seed 0")


if __name__ == "__main__":
    main()
