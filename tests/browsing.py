"""Pages looked at in a real browser."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

#: Every piece of text on a page and its contrast to what is behind it, the faintest first.
CONTRAST = """
() => {
  const shade = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => { const [x, y, z] = [r, g, b].map(v => (v /= 255) <= .04045 ? v / 12.92
    : ((v + .055) / 1.055) ** 2.4); return .2126 * x + .7152 * y + .0722 * z; };
  const over = (top, under) => { const a = top.length > 3 ? top[3] : 1;
    return [0, 1, 2].map(k => a * top[k] + (1 - a) * under[k]); };
  const behind = element => { for (let e = element; e; e = e.parentElement) {
    const c = shade(getComputedStyle(e).backgroundColor); if (c.length == 3 || c[3] == 1) return c; }
    return [255, 255, 255]; };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest('style') || !element.checkVisibility()) continue;
    const style = getComputedStyle(element), paper = behind(element);
    const drawn = element.closest('svg');
    const faded = (drawn ? style.fill : style.color);
    const ink = over([...shade(faded).slice(0, 3), Number(drawn ? style.opacity : 1)], paper);
    const [a, b] = [light(ink), light(paper)].sort((x, y) => y - x);
    found.push([(a + .05) / (b + .05), walker.currentNode.data.trim().slice(0, 40)]);
  }
  return found.sort((x, y) => x[0] - y[0]);
}
"""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A real Chromium; where there is none the test says so and is skipped."""
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt-get install chromium (make test does, as root)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=CHROMIUM)
        yield one
        one.close()


class Seen:
    """A page in the browser, and everything that it asked for or complained about."""

    def __init__(self, browser: Browser, path: Path, **context: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 900}, **context)
        self.page: Page = self.context.new_page()
        self.trouble: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.trouble.append(message.text))
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("dialog", lambda dialog: self.trouble.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.url = path.resolve().as_uri()
        self.page.goto(self.url)

    def __enter__(self) -> Seen:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def text(self, selector: str = "body") -> str:
        return self.page.locator(selector).first.inner_text()

    def unfold(self) -> None:
        """Open the sections that are folded."""
        self.page.evaluate("document.querySelectorAll('.folded > details').forEach(e => e.open = true)")

    def is_quiet(self) -> bool:
        """Nothing was complained of, and nothing left the file."""
        return self.trouble == [] and [url for url in self.requests if not url.startswith("data:")] == [
            self.url
        ]


#: What the page says of itself in digits, apart from the numbers of a result.
OWN_WORDS = ("plaud2026single", "{2026}", "0.1.0")


def at(tree: Any, path: str) -> Any:
    """A number by its path, found another way than the page does."""
    name, _, key = path.partition(".")
    if key and isinstance(tree, dict) and isinstance(tree.get(name), dict) and key in tree[name]:
        return tree[name][key]  # of any text
    if "+" in path:
        return sum(at(tree, each) for each in path.split("+"))
    if path.startswith("1-"):
        return 1 - at(tree, path[2:])
    for step in path.split("."):
        tree = tree[int(step)] if isinstance(tree, list) else tree[step]
    return tree


def near(shown: str, value: float) -> bool:
    """Whether a text says this number, to as many digits as it shows."""
    text = shown.replace("\N{MINUS SIGN}", "-").replace(",", "").replace("$", "").strip()
    if text.startswith("below "):
        return 0 <= abs(value) < float(text[6:].rstrip("%")) / (100 if text.endswith("%") else 1)
    unit = {"s": 1, "min": 60, "h": 3600}.get(text.split(" ")[-1])
    digits = text.split(" ")[0].rstrip("%")
    scale = 0.01 if text.endswith("%") else float(unit or 1)
    half: float = 0.5 / 10 ** len(digits.partition(".")[2]) * scale
    return abs(float(digits) * scale - value) <= half * 1.000001


def check_numbers(seen: Seen, tree: Any) -> int:
    """Every number on the page says what result.json has at its path; and there is no other number."""
    shown = seen.page.evaluate(
        "[...document.querySelectorAll('data')].map(e => [e.dataset.path, e.dataset.form, e.value, "
        "e.textContent])"
    )
    for path, form, value, text in shown:
        held = at(tree, path)
        assert float(value) == pytest.approx(held, rel=1e-12, abs=1e-15), path
        points = held * 100 if form in ("signed", "points") else held
        assert near(text, points), (path, held, text)
    rest = seen.page.evaluate(
        "(() => { const copy = document.body.cloneNode(true); copy.querySelectorAll("
        "'data, svg, .verbatim, .given, time, style').forEach(e => e.remove()); return copy.textContent; })()"
    )
    for word in OWN_WORDS:
        rest = rest.replace(word, "")
    assert not re.search(r"\d", rest), re.findall(r".{30}\d.{10}", rest)
    return len(shown)
