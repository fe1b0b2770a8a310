"""Records of a data set on the Hugging Face Hub, or of a folder in its layout, loaded with ``datasets``."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from blindcal.errors import InputError, MissingExtraError
from blindcal.items.record_files import Record
from blindcal.text import printable

PREFIX = "hf:"
_FORM = re.compile(r"(?P<name>[^:@]+)(?::(?P<config>[^:@]+))?(?:@(?P<split>[^:@]+))?")


@dataclass(frozen=True, slots=True)
class HubDataSet:
    """Where a data set is: its name on the Hub (or a folder), its configuration and its split."""

    name: str
    config: str | None = None
    split: str | None = None

    @classmethod
    def parse(cls, source: str) -> HubDataSet:
        """Read ``hf:NAME[:CONFIG][@SPLIT]``."""
        found = _FORM.fullmatch(source.removeprefix(PREFIX))
        if found is None:
            raise InputError(f"{printable(source)}: must have the form hf:NAME[:CONFIG][@SPLIT]")
        return cls(found["name"], found["config"], found["split"])

    def __str__(self) -> str:
        config = "" if self.config is None else f":{self.config}"
        return f"{PREFIX}{self.name}{config}" + ("" if self.split is None else f"@{self.split}")


def records(hosted: HubDataSet) -> Iterator[Record]:
    """The rows of one split, in order; class numbers are replaced by class names."""
    try:
        import datasets
    except ImportError:
        raise MissingExtraError(
            f"{hosted}: loading from Hugging Face needs datasets", remedy="pip install 'blindcal[data]'"
        ) from None
    log = logging.getLogger("huggingface_hub")
    before = log.level
    log.setLevel(logging.ERROR)  # it logs every retry; the final error says it once
    try:
        loaded = datasets.load_dataset(hosted.name, hosted.config, split=hosted.split)
    except (ValueError, RuntimeError, OSError) as error:
        raise _explained(hosted, error) from None
    finally:
        log.setLevel(before)
    if isinstance(loaded, datasets.DatasetDict):
        if len(loaded) > 1:
            first = next(iter(loaded))
            raise InputError(
                f"{hosted}: has the splits {', '.join(loaded)}; choose one, such as {hosted}@{first}"
            )
        (loaded,) = loaded.values()
    named = {
        field: kind.names for field, kind in loaded.features.items() if isinstance(kind, datasets.ClassLabel)
    }
    for row in loaded:
        yield {field: _named(value, named.get(field)) for field, value in row.items()}


def _named(value: Any, names: list[str] | None) -> Any:
    return names[value] if names and isinstance(value, int) and 0 <= value < len(names) else value


def _explained(hosted: HubDataSet, error: Exception) -> InputError:
    """Turn an error from loading a data set into one line that says what to do."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{hosted}: no such data set, or it needs a login ({printable(str(error), 120)})")
    if isinstance(error, ConnectionError | TimeoutError):
        return InputError(
            f"{hosted}: the Hugging Face Hub cannot be reached",
            remedy="without a network, download the set's files elsewhere and name their folder: {data_dir} "
            f"for a set that blindcal knows, {PREFIX}FOLDER[@SPLIT] for any other",
            options={"data_dir": ...},
        )
    return InputError(f"{hosted}: {printable(' '.join(str(error).split()), 300)}")
