"""The report in headless Chromium: no errors, everything visible, phone, dark mode."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_folders import HOSPITALS, write_run

from fedapp.gossip.ledger import Heard, Ledger
from fedapp.report import write_report

webdriver = pytest.importorskip("selenium.webdriver")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--window-size=1280,900",
)  # fmt: skip
CONTRAST = """
const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
function rgba(colour) {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return Array.from(canvas.getImageData(0, 0, 1, 1).data);
}
function luminance(c) {
  const [r, g, b] = c.slice(0, 3).map(v => (v /= 255) <= 0.04045 ? v / 12.92
    : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function background(node) {
  for (; node; node = node.parentElement) {
    const c = rgba(getComputedStyle(node).backgroundColor);
    if (c[3] === 255) return c;
  }
  return [255, 255, 255, 255];
}
const found = [];
for (const node of document.querySelectorAll(arguments[0])) {
  if (!node.getClientRects().length || !node.textContent.trim()) continue;
  const style = getComputedStyle(node);
  const pair = [rgba(node instanceof SVGElement ? style.fill : style.color), background(node)];
  const [high, low] = pair.map(luminance).sort((a, b) => b - a);
  found.push([node.textContent.trim().slice(0, 40), (high + 0.05) / (low + 0.05)]);
}
return found;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        sentence = (
            "the report is tested in headless Chromium, but chromium or chromedriver is missing; "
            "install them: apt-get install chromium chromium-driver"
        )
        if os.environ.get("CI"):
            pytest.fail(sentence)
        pytest.skip(sentence)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    opened = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield opened
    opened.quit()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = {**HOSPITALS, "Universitätsklinikum " + "Donaudampfschifffahrt" * 6: 50}
    return write_report(
        write_run(tmp_path_factory.mktemp("runs") / "demo", sites=names, settings={"seed": 3})
    )


def show(browser: Any, report: Path, *, width: int = 1280, dark: bool = False) -> None:
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(report.resolve().as_uri())
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")


def test_no_console_errors_and_no_requests(browser: Any, report: Path) -> None:
    show(browser, report)
    assert browser.get_log("browser") == []
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [one["params"] for one in sent if one["method"] == "Network.requestWillBeSent"]
    # The browser may still be at something of its own, which is no request of this page.
    page = report.resolve().as_uri()
    addresses = [one["request"]["url"] for one in asked if one["documentURL"] == page]
    assert page in addresses, "the page itself must be seen"
    others = [each for each in addresses if not each.startswith(("file:", "data:"))]
    assert others == []


def test_plots_and_table_are_visible(browser: Any, report: Path) -> None:
    show(browser, report)
    plots = browser.find_elements("css selector", "svg[role=img]")
    assert len(plots) == 1 + 5 + 5 + 2
    for plot in plots:
        assert plot.is_displayed()
        assert plot.size["width"] > 250
        assert plot.size["height"] > 140
        assert plot.find_elements("css selector", "path, use")
    table = browser.find_element("id", "results")
    assert table.is_displayed()
    assert len(table.find_elements("css selector", "tbody tr")) == 5
    assert "VA Long Beach" in table.text


def test_drawn_text_stays_inside_its_plot(browser: Any, report: Path) -> None:
    show(browser, report)
    outside = browser.execute_script(
        """
        return [...document.querySelectorAll('svg[role=img] text')].filter(text => {
          const t = text.getBoundingClientRect(), s = text.closest('svg').getBoundingClientRect();
          return t.left < s.left - 1 || t.right > s.right + 1 || t.top < s.top - 1
            || t.bottom > s.bottom + 1;
        }).map(text => text.textContent);
        """
    )
    assert outside == []


@pytest.mark.parametrize("width", [320, 390, 768])
def test_no_sideways_scrolling(browser: Any, report: Path, width: int) -> None:
    show(browser, report, width=width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    inner, outer = browser.execute_script(
        "const b = document.querySelector('#results').parentElement;"
        "return [b.scrollWidth, b.clientWidth]"
    )
    assert outer <= width
    if width < 600:
        assert inner > outer, "the wide table scrolls inside its own box"


def test_first_column_stays_in_view(browser: Any, report: Path) -> None:
    show(browser, report, width=390)
    left = browser.execute_script(
        "const b = document.querySelector('#results').parentElement; b.scrollLeft = 300;"
        "return b.querySelector('tbody th').getBoundingClientRect().left - "
        "b.getBoundingClientRect().left"
    )
    assert 0 <= left < 3


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_everything_is_readable(browser: Any, report: Path, dark: bool) -> None:
    show(browser, report, dark=dark)
    background = browser.execute_script(
        "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    )
    assert (max(background) < 60) is dark
    text = "p, li, dt, dd, h1, h2, h3, th, td, summary, code, mark, caption, svg[role=img] text"
    contrasts = browser.execute_script(CONTRAST, text)
    assert len(contrasts) > 150
    assert {word: ratio for word, ratio in contrasts if ratio < 4.5} == {}  # WCAG AA


def test_unfinished_run_opens_too(browser: Any, tmp_path: Path) -> None:
    page = write_report(write_run(tmp_path / "run", finished=False, rounds=1))
    show(browser, page, width=390)
    assert browser.get_log("browser") == []
    assert "has not finished" in browser.find_element("css selector", "[role=status]").text


def test_a_cell_of_a_heat_map_leads_to_its_row(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "cells", settings={"method": "lightyear"})
    ledger = Ledger(run / "ledger" / "Bern.jsonl", "run", "Bern")
    for round_ in (1, 2, 3):
        scores = {"head": 0.4 * round_, "distance": 0.5}
        peers = [Heard(origin=peer, accepted=True, scores=scores) for peer in ("Graz", "Ulm")]
        ledger.record(round_, peers, time=1.0)
    ledger.close()
    page = write_report(run)
    browser.get(page.resolve().as_uri())

    cell = browser.find_elements("css selector", ".cells a")[4]  # Ulm, round 2
    said = browser.execute_script("return arguments[0].querySelector('title').textContent", cell)
    target = browser.find_element("css selector", cell.get_dom_attribute("href"))
    assert not target.is_displayed(), "the table is folded at first"
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", cell)
    webdriver.ActionChains(browser).move_to_element(cell).click().perform()

    assert said.startswith("Bern, round 2: Ulm accepted, weight 0.00, distance 0.50, head 0.80")
    assert target.is_displayed()
    assert target.text.split()[:3] == ["Bern", "2", "Ulm"]
