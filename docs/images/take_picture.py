"""The picture of a run in the README: the top of its report, as Chromium shows it.

Usage:
    .venv/bin/python docs/images/take_picture.py runs/latest

Needs chromium and chromedriver. Writes docs/images/report.png.
"""

from __future__ import annotations

import base64
import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from selenium import webdriver

from fedapp.report import write_report

WIDTH = 1180
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def take(run: Path, picture: Path) -> None:
    """Save the report of ``run`` from its title to the end of the learning curves."""
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        browser = webdriver.Chrome(
            options, webdriver.ChromeService(shutil.which("chromedriver") or "")
        )
        try:
            size = {"width": WIDTH, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            browser.get(write_report(run).resolve().as_uri())
            bottom = browser.execute_script(
                "return document.querySelector('#curves').parentElement"
                ".getBoundingClientRect().bottom + 24"
            )
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": bottom, "scale": 1}
            shot = browser.execute_cdp_cmd(
                "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
            )
        finally:
            browser.quit()
    image = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        picture, optimize=True
    )  # a third of the size


if __name__ == "__main__":
    take(Path(sys.argv[1]), Path(__file__).with_name("report.png"))
