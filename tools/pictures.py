"""Makes the pictures of README and docs: of two comparisons, and of a context-aware run.

    make pictures REPORTED=runs/cityscapes_lite2 COMPARISON=runs/pictures RUN=runs/camvid DATA=data/camvid

docs/report.md says which commands train them. Report, figures and page are those of `cacseg report`, `figures` and
`app`; Chromium takes the screenshots (`make browser` installs it).
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

OUTPUT = Path(__file__).parent.parent / "docs" / "pictures"
CACSEG = sys.executable, "-m", "cacseg.cli"
SHOWN = "Largest gains", "Largest losses"  # of each the first strip
GAP = 8  # pixels between strips
TILES, BETWEEN = 5, 12.5  # of a strip, image, labels, plain, tuned, changes; pixels between them
AMONG = 24  # validation images that the strips were chosen from
EXAMPLE = 8  # the image in the page of `cacseg app`


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reported", type=Path, help="the folder of a comparison, for the pictures of its report")
    parser.add_argument("comparison", type=Path, help="the folder of `cacseg compare camvid --arms plain,tuned`")
    parser.add_argument("run", type=Path, help="the folder of a context-aware run on CamVid, with its weights")
    parser.add_argument("--data", type=Path, required=True, help="CamVid: images/{train,val}, labels/{train,val}")
    asked = parser.parse_args()
    check_report(asked.comparison / "report.html")
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        scratch = Path(name)
        call("figures", asked.run, "--root", asked.data, "-o", scratch, "--overwrite", "--images", 12)
        for figure in ("tsne", "moves"):
            keep(f"camvid_{figure}.png", (scratch / f"{figure}.png").read_bytes())
        show_report(browser, asked.reported / "report.html")
        with opened(browser, 1280, 860, sharpness=1.25) as page:
            page.goto((asked.comparison / "report.html").resolve().as_uri())  # with the images that were drawn then
            titles = [page.locator("#images h3", has_text=title) for title in SHOWN]
            strips = [one.locator("xpath=following-sibling::*[1]").locator(".cells").screenshot() for one in titles]
            keep("camvid_strips.jpg", *map(without_labels, strips))
        with opened(browser, 1060, 930) as page, app(asked.run, asked.data / "images" / "val") as url:
            page.goto(url)
            page.locator("#example-list button").nth(EXAMPLE).click()
            page.locator("#name:not(:empty)").wait_for()
            page.locator("#status:empty").wait_for(state="attached")
            keep("app.jpg", page.screenshot())


def show_report(browser: Browser, path: Path) -> None:
    with opened(browser, 1280, 1100) as page:
        page.goto(path.resolve().as_uri())
        keep("report.png", page.screenshot())
    with opened(browser, 390, 844, scheme="dark") as page:
        page.goto(path.resolve().as_uri())
        page.locator("#classes").evaluate("one => one.scrollIntoView({behavior: 'instant'})")
        keep("report_phone.png", page.screenshot())


def check_report(path: Path) -> None:
    """That the strips are those that README's caption speaks of."""
    if f"Chosen among {AMONG} of" not in path.read_text(encoding="utf-8"):
        sys.exit(f"{path} must show images chosen among {AMONG}: run `cacseg report {path.parent} --images {AMONG}`.")


def without_labels(strip: bytes) -> bytes:
    """The second of five tiles is left out: what changed says what was right."""
    whole = Image.open(io.BytesIO(strip)).convert("RGB")
    pitch = (whole.width + BETWEEN) / TILES
    first, third = round(pitch), round(2 * pitch)
    left, right = whole.crop((0, 0, first, whole.height)), whole.crop((third, 0, whole.width, whole.height))
    kept = Image.new("RGB", (left.width + right.width, whole.height), "white")
    kept.paste(left, (0, 0))
    kept.paste(right, (left.width, 0))
    stream = io.BytesIO()
    kept.save(stream, format="PNG")
    return stream.getvalue()


def call(*words: object) -> None:
    subprocess.run([*CACSEG, *map(str, words)], check=True)


@contextmanager
def app(run: Path, examples: Path) -> Iterator[str]:
    """The address of the page, while it is served."""
    words = ("app", run, "--port", 0, "--examples", examples)
    server = subprocess.Popen([*CACSEG, *map(str, words)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().split()[0]
    finally:
        server.terminate()
        server.wait()


@contextmanager
def chromium() -> Iterator[Browser]:
    names = (os.environ.get("CACSEG_BROWSER"), *map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=next(filter(None, names), None))
        yield browser
        browser.close()


@contextmanager
def opened(
    browser: Browser, width: int, height: int, *, scheme: str = "light", sharpness: float = 1.0
) -> Iterator[Page]:
    size = {"width": width, "height": height}
    context = browser.new_context(viewport=size, color_scheme=scheme, device_scale_factor=sharpness)
    yield context.new_page()
    context.close()


def keep(name: str, *contents: bytes) -> None:
    """Pictures below one another; photographs as JPEG, others as PNG of 256 colours: both small."""
    pictures = [Image.open(io.BytesIO(content)).convert("RGB") for content in contents]
    whole = Image.new("RGB", (pictures[0].width, sum(one.height + GAP for one in pictures) - GAP), "white")
    for place, one in enumerate(pictures):
        whole.paste(one, (0, sum(before.height + GAP for before in pictures[:place])))
    path = OUTPUT / name
    if path.suffix == ".jpg":
        whole.save(path, quality=80, subsampling=0, optimize=True)
    else:
        whole.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {whole.width}x{whole.height}, {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
