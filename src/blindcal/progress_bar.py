"""Progress bars in a terminal or a notebook: ``ProgressBar`` for a run, ``count_bar`` for a count."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from tqdm import TqdmWarning, tqdm

from blindcal.records import Progress


class ProgressBar:
    """Shows the answers on disk, their rate, the time left, invalid answers and cost; options go to tqdm."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._bar: Any = None
        self._probing = False

    def __call__(self, progress: Progress) -> None:
        """Show the progress of a run; the probe has its own bar, which disappears at its end."""
        if progress.probing != self._probing:
            self.close()
        if self._bar is None:
            self._probing = progress.probing
            self._bar = _tqdm()(
                desc=f"probing, about {progress.total:,}" if progress.probing else None,
                leave=not progress.probing,
                initial=progress.done,
                unit="query",
                smoothing=0.05,
                dynamic_ncols=True,
                **self._options,
            )
        bar, usage = self._bar, progress.usage
        shown: dict[str, Any] = {}
        if not progress.probing:
            shown["invalid"] = f"{usage.invalid / max(1, progress.done):.1%}"
            shown["concurrency"] = progress.concurrency
        if progress.cost is not None:
            shown["cost"] = f"${progress.cost:.4f}"
        bar.total = None if progress.probing else progress.total  # a probe ends where it ends
        bar.set_postfix(shown, refresh=False)
        if progress.done == bar.n:  # nothing new, but the elapsed time changes
            bar.refresh()
        bar.update(progress.done - bar.n)
        if progress.done >= progress.total:
            bar.refresh()  # tqdm may skip an update that comes too soon, and this is the last one

    def close(self) -> None:
        """Close the bar and leave its last state on the screen."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def wrap_print(self, print_line: Callable[[str], None]) -> Callable[[str], None]:
        """Wrap ``print_line`` to remove an unfinished bar first; the next update shows it again."""

        def wrapped(text: str) -> None:
            if self._bar is not None:
                self._bar.leave = not self._probing and self._bar.n >= self._bar.total
                self.close()
            print_line(text)

        return wrapped

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def count_bar(**options: Any) -> Iterator[Callable[[int, int], None]]:
    """A bar to call with the number done and the total; options go to tqdm."""
    with tqdm(leave=False, **options) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            if not bar.n:
                bar.initial = done
            bar.update(done - bar.n)

        yield show


def _tqdm() -> type[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TqdmWarning)  # a notebook without ipywidgets gets the text
        from tqdm import auto
    return auto.tqdm
