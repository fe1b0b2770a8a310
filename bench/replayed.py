"""Audits of recorded models over HTTP and from files, which must agree to the last digit.

    python bench/replayed.py

The server answers from a real model's recorded logits as an opaque API would. `latent` audits all of BoolQ
and of binarised MMLU (by subject) with one query per item, seed 0.
"""

from __future__ import annotations

from record import options, record, table

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import blindcal as bc
from blindcal.items import catalogue
from blindcal.items.record_format import RecordFormat
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


def main() -> None:
    """Audit each recorded model with one query per item, and record the table."""
    arguments, rows = options(__doc__), []
    for path in sources.find([arguments.data / "logits"]):
        source, begin = sources.read(path), time.perf_counter()
        with served(source, arguments.data) as settings, tempfile.TemporaryDirectory() as out:
            result = bc.audit(source.data, settings, out=out)
        rest = time.perf_counter() - begin - result.seconds
        direct = bc.simulate("latent", source.labels, source.probabilities("pair"), repeats=1)
        ece, equal = result.ece, "yes" if result.ece.value == direct.estimates[0] else "NO"
        numbers = [direct.oracle, ece.value, direct.estimates[0], equal, (ece.low, ece.high)]
        rows.append([source.name, source.n, len(result.parts) or None, *numbers, result.seconds, rest])
    columns = {
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
    }
    record("replayed", {"one_query": table(columns, rows)}, arguments, repeats=1, seeds="seed 0")


if __name__ == "__main__":
    main()
