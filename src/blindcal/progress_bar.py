"""A progress bar for a run, in a terminal or a notebook: ``audit(..., progress=ProgressBar())``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Self

from tqdm import TqdmWarning

from blindcal.auditing.job import Progress


class ProgressBar:
    """Shows answers that are on disk, their rate, the time left, the share of invalid ones and the cost."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._bar: Any = None
        self._probing = False

    def __call__(self, progress: Progress) -> None:
        """Show where a run is; the probe has a bar of its own, which goes when it is over."""
        if progress.probing != self._probing:
            self.close()
        if self._bar is None:
            self._probing = progress.probing
            self._bar = _tqdm()(
                desc="probing" if progress.probing else None,
                leave=not progress.probing,
                total=progress.total,
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
            shown["at once"] = progress.concurrency
        if progress.cost is not None:
            shown["cost"] = f"${progress.cost:.4f}"
        bar.total = progress.total
        bar.set_postfix(shown, refresh=False)
        if progress.done == bar.n:  # waiting: the clock goes on at least
            bar.refresh()
        bar.update(progress.done - bar.n)
        if progress.done >= progress.total:  # tqdm may hold it back as too soon, and no more will come
            bar.refresh()

    def close(self) -> None:
        """Leave the last state on the screen."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def giving_way(self, say: Callable[[str], None]) -> Callable[[str], None]:
        """``say`` for while the bar is shown: an unfinished bar goes for a line of text, and comes again."""

        def told(text: str) -> None:
            if self._bar is not None:
                self._bar.leave = not self._probing and self._bar.n >= self._bar.total
                self.close()
            say(text)

        return told

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _tqdm() -> type[Any]:
    """A notebook's bar in a notebook that can show one, a line of text anywhere else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TqdmWarning)  # a notebook without ipywidgets has the line of text
        from tqdm.auto import tqdm
    return tqdm
