"""Build the documentation site, and check every link on it.

    python bench/docs_site.py

Zensical builds docs/ as zensical.toml says, and warnings are errors. It checks links between Markdown pages;
pictures, files, raw HTML and the API reference are checked here, on the built pages. Ends with status 1 if a
link within the site leads nowhere. Links to other sites are not fetched.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

from math_core import LatexToMathML

ROOT = Path(__file__).resolve().parents[1]
_FORMULAS = LatexToMathML()


class BuildError(Exception):
    """The site could not be built; the text says why."""


def math_fence(source: str, *_: object, **__: object) -> str:
    """A formula in TeX as MathML, which browsers draw themselves: a fence of pymdownx.superfences."""
    return f'<div class="formula">{_FORMULAS.convert_with_local_state(source, displaystyle=True)}</div>'


def build(root: Path = ROOT) -> None:
    """Build the site of a clone into its folder ``site``."""
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BuildError(f"{done.stdout}{done.stderr}")


@dataclass
class SitePage(HTMLParser):
    """What a built page links to, and what can be linked to on it."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif name in ("href", "src") and value is not None:
                self.links.append(value)
            elif name == "srcset" and value is not None:
                self.links += [one.split()[0] for one in value.split(",")]


def pages(site: Path) -> dict[Path, SitePage]:
    """Every page of a built site."""
    return {path.resolve(): SitePage(path.resolve()) for path in sorted(site.rglob("*.html"))}


def broken_links(site: Path) -> Iterator[str]:
    """The links within a built site that lead nowhere, one line each."""
    known = pages(site)
    for page in known.values():
        for link in page.links:
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            target, anchor = (unquote(part) for part in urldefrag(link))
            # the page for wrong addresses has no place of its own: its links start at the top
            start = site if target.startswith("/") or page.path.name == "404.html" else page.path.parent
            linked = (start / target.lstrip("/")).resolve() if target else page.path
            where = f"{page.path.relative_to(site.resolve())}: {link}"
            if not linked.is_relative_to(site.resolve()):
                yield f"{where} leads out of the site"
            elif not linked.exists():
                yield f"{where} is not there"
            elif anchor and linked in known and anchor not in known[linked].anchors:
                yield f"{where} has no such heading"


def main() -> int:
    """Build and check."""
    try:
        build()
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    broken = list(broken_links(ROOT / "site"))
    print(*broken, sep="\n", end="\n" if broken else "", file=sys.stderr)
    if not broken:
        print("site/index.html")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
