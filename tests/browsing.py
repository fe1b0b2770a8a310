"""Pages looked at in a real browser."""

from __future__ import annotations

import contextlib
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

    def is_quiet(self) -> bool:
        """Nothing was complained of, and nothing left the file."""
        return self.trouble == [] and [url for url in self.requests if not url.startswith("data:")] == [
            self.url
        ]
