"""Makes the pictures of README and docs from a comparison of plain and tuned on CamVid.

    cacseg compare camvid --root data/camvid --arms plain,tuned --seeds 1 --steps 2000 --set data.crop=256,384 $MODEL \\
        --set model.head_channels=128 --set training.validate_every=250 -o runs/pictures    # $MODEL: docs/results.md
    make pictures RUNS=runs/pictures DATA=data/camvid

Report, figures and page are those of `cacseg report`, `figures` and `app`; Chromium takes the screenshots.
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
ARMS = "plain", "tuned"
CLASS = "car"  # of t-SNE
EXAMPLE = 8  # the image in the page
CACSEG = sys.executable, "-m", "cacseg.cli"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="the folder of the comparison")
    parser.add_argument("--data", type=Path, required=True, help="CamVid: images/{train,val}, labels/{train,val}")
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for arm in ARMS:  # the figures name runs by their folders
            (found,) = (asked.runs / "runs").glob(f"{arm}-*-0")
            shutil.copytree(found, scratch / arm)
        call("report", asked.runs, "-o", scratch / "report.html", "--data", asked.data)
        runs = [scratch / arm for arm in ARMS]
        call("figures", *runs, "--root", asked.data, "-o", scratch / "figures", "--rows", 2, "--class", CLASS)
        for figure in ("predictions", "tsne", "moves"):
            keep(asked.output / f"camvid_{figure}.png", (scratch / "figures" / f"{figure}.png").read_bytes())
        with chromium() as browser:
            report = (scratch / "report.html").as_uri()
            with opened(browser, 1280, 900) as page:
                page.goto(report)
                keep(asked.output / "report.png", page.screenshot())
            with opened(browser, 390, 844, dark=True) as page:
                page.goto(report)
                page.locator("#images h3").first.evaluate("one => one.scrollIntoView()")
                keep(asked.output / "report_phone.png", page.screenshot())
            with opened(browser, 1280, 960) as page, app(scratch / ARMS[1], asked.data / "images" / "val") as url:
                page.goto(url)
                page.locator("#example-list button").nth(EXAMPLE).click()
                page.locator("#name:not(:empty)").wait_for()
                page.locator("#status:empty").wait_for(state="attached")
                keep(asked.output / "app.png", page.screenshot())


def call(*words: object) -> None:
    subprocess.run([*CACSEG, *map(str, words), "--device", "cpu"], check=True)


@contextmanager
def app(run: Path, examples: Path) -> Iterator[str]:
    """The address of the page, while it is served."""
    words = ("app", run, "--port", 0, "--examples", examples, "--device", "cpu")
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
def opened(browser: Browser, width: int, height: int, *, dark: bool = False) -> Iterator[Page]:
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", device_scale_factor=1
    )
    yield context.new_page()
    context.close()


def keep(path: Path, content: bytes) -> None:
    """With 256 colours, which makes a third of the file and no visible difference."""
    with Image.open(io.BytesIO(content)) as picture:
        few = picture.convert("RGB").quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.FLOYDSTEINBERG)
    few.save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
