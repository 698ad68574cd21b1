"""A real headless browser: CACSEG_BROWSER, an installed Chromium or Chrome, or Playwright's own; else a skip."""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser():
    library = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[test]'")
    with library.sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        places = (os.environ.get("CACSEG_BROWSER"), *map(shutil.which, NAMES), own if Path(own).exists() else None)
        found = next(filter(None, places), None)
        if found is None:
            pytest.skip("no Chromium or Chrome was found: `make browser` installs one, CACSEG_BROWSER names another")
        started = playwright.chromium.launch(executable_path=found)
        yield started
        started.close()


@pytest.fixture
def page(browser):
    """A page that may talk to this machine alone; its errors and what it asks of others fail the test."""
    with _opened(browser, viewport={"width": 1280, "height": 1200}, accept_downloads=True) as page:
        yield page


@pytest.fixture
def phone(browser):
    """The same with fingers in place of a mouse."""
    with _opened(browser, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True) as page:
        yield page


@contextmanager
def _opened(browser, **options):
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(15_000)
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if not _is_local(request.url) else None)
    yield page
    context.close()
    assert wrong == []


@pytest.fixture
def screenshot(page):
    """Writes what the page shows into the folder CACSEG_SCREENSHOTS, where that is set: to be looked at."""
    folder = os.environ.get("CACSEG_SCREENSHOTS")

    def write(name, **options):
        if folder:
            page.screenshot(path=Path(folder) / f"{name}.png", **options)

    return write


def _is_local(url):
    return url.startswith(("http://127.0.0.1:", "file://", "data:", "blob:"))
