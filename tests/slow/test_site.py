"""The documentation site: it has all pages, all links lead somewhere, and it loads nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import blindcal as bc
from browsing import chromium
from paths import ROOT

pytest.importorskip("zensical", reason="the site needs: pip install --group docs")
PAGES = sorted(path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md"))

import docs_site  # noqa: E402 - bench/ is a folder of scripts, not a package


def copied(to: Path) -> Path:
    """What the site is made of."""
    for folder in ("docs", "src"):
        shutil.copytree(ROOT / folder, to / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "zensical.toml", to)
    return to


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    root = copied(tmp_path_factory.mktemp("clone"))
    docs_site.build(root)
    return root / "site"


def in_navigation(entries: list[Any]) -> Iterator[Path]:
    """The pages that a part of the navigation names."""
    for entry in entries:
        for content in entry.values():
            if isinstance(content, str):
                yield Path(content)
            else:
                yield from in_navigation(content)


def test_every_page_has_its_place_in_the_navigation() -> None:
    """Each page under docs/ is named in zensical.toml once, and nothing else is."""
    named = list(in_navigation(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    lacking = sorted(map(str, set(PAGES) - set(named)))
    assert not lacking, f"add to nav in zensical.toml: {', '.join(lacking)}"
    unknown = sorted(map(str, set(named) - set(PAGES)))
    assert not unknown, f"nav in zensical.toml names pages that are not in docs/: {', '.join(unknown)}"
    assert len(named) == len(set(named)), "nav in zensical.toml names a page twice"


def test_every_link_leads_somewhere(site: Path) -> None:
    """Links between pages, to headings, pictures and files, in the text and around it, all arrive."""
    assert list(docs_site.broken_links(site)) == []
    assert {path.with_suffix(".html") for path in PAGES} <= {
        path.relative_to(site) for path in site.rglob("*.html")
    }


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    """A page, a heading and a picture that are not there are named, and so is a link out of the site."""
    (tmp_path / "a.html").write_text('<h1 id="top">A</h1><a href="b.html#there">b</a><a href="#top">up</a>')
    (tmp_path / "b.html").write_text(
        '<h1 id="there">B</h1><a href="a.html#gone">a</a><a href="c.html">c</a><img src="d.png">'
        '<a href="../e.txt">e</a><a href="https://example.org/">not fetched</a>'
    )
    assert list(docs_site.broken_links(tmp_path)) == [
        "b.html: a.html#gone has no such heading",
        "b.html: c.html is not there",
        "b.html: d.png is not there",
        "b.html: ../e.txt leads out of the site",
    ]


def test_formulas_are_drawn(site: Path) -> None:
    """Each formula of the method is MathML on the site, and no TeX is left on it."""
    built = (site / "method.html").read_text()
    assert built.count("<math") == (ROOT / "docs" / "method.md").read_text().count("```math")
    assert "\\frac" not in built


def test_the_api_reference_is_whole(site: Path) -> None:
    """Every public name has an entry."""
    built = docs_site.SitePage(site / "api.html")
    public = {f"blindcal.{name}" for name in bc.__all__ if not name.endswith("Error")}
    errors = {f"blindcal.errors.{name}" for name in bc.__all__ if name.endswith("Error")}
    assert (public | errors) - built.anchors == set()


def test_the_site_works_from_a_disk(site: Path) -> None:
    """Opened as files, pages load nothing from elsewhere, fit a phone, and the search finds something."""
    trouble: list[str] = []
    with chromium() as browser:
        phone = browser.new_page(viewport={"width": 390, "height": 800}, java_script_enabled=False)
        desk = browser.new_page(viewport={"width": 1280, "height": 900})
        for page in (phone, desk):
            page.on("pageerror", lambda error: trouble.append(str(error)))
            page.on("console", lambda message: trouble.append(message.text))
            page.on("request", lambda sent: trouble.extend([sent.url] * (not sent.url.startswith("file:"))))
        for name in PAGES:
            phone.goto((site / name.with_suffix(".html")).as_uri())
            assert phone.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
        desk.goto((site / "index.html").as_uri())
        desk.locator(".md-search__button").click()
        desk.keyboard.type("jitter")
        desk.get_by_text(re.compile(r"^[1-9]\d* results$")).wait_for()
    assert trouble == []
