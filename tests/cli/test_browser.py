"""What people look at, in a headless browser: the page of ``nnvm show``, and our JSON in Netron.

Skipped where there is no Chromium, or one of the packages playwright and netron is not installed. With
``NNVM_SCREENSHOTS=dir`` the pictures are kept.
"""

import os
import re
import shutil
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

from nnvm.cli import main
from nnvm.compiler.pipeline import pipeline
from nnvm.graph.pass_manager import PassContext, apply_passes
from tests.graph.test_pipeline import residual_network, transformer_layer

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [pytest.mark.browser,
              pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")]  # fmt: skip


@contextmanager
def browsing():
    """A page, the addresses that it asks for, and the errors that it has."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        asked, errors = [], []
        page.on("request", lambda r: asked.append(r.url))
        page.on("pageerror", lambda e: errors.append(str(e)))
        try:
            yield page, asked, errors
        finally:
            browser.close()


def keep(page, name):
    folder = os.environ.get("NNVM_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png")


def test_the_page_works_without_a_network(tmp_path):
    (tmp_path / "net.json").write_text(residual_network().json())
    assert main.main(["show", str(tmp_path / "net.json"), "-o", str(tmp_path / "page.html")]) == 0
    with browsing() as (page, asked, errors):
        page.goto((tmp_path / "page.html").as_uri())
        assert asked == [(tmp_path / "page.html").as_uri()] and errors == []
        box = page.locator("#after g[data-group='1']").first
        box.dispatch_event("click")
        assert page.locator("tr.on").count() == 1 and page.locator("#after g.on").count() == 1
        assert page.locator("#before g.on").count() >= 1
        keep(page, "page")
        width = page.locator("#after svg").evaluate("e => e.clientWidth")
        page.locator("#after button[data-zoom='1.25']").click()
        assert page.locator("#after svg").evaluate("e => e.clientWidth") > 1.2 * width
        head = page.locator("#kernels table.sortable th", has_text="MFLOP").first
        for order in (True, False):
            head.click()
            values = page.locator("#kernels table.sortable").first.evaluate(
                "t => [...t.tBodies[0].rows].map(r => Number(r.cells[3].dataset.value))")  # fmt: skip
            assert values == sorted(values, reverse=order) and len(set(values)) > 3
        for chart in page.locator("svg.chart").all():
            shape = chart.bounding_box()
            assert shape["width"] > 500 and shape["height"] > 50
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "it scrolls sideways"
        assert errors == []


@pytest.mark.parametrize("build", [residual_network, transformer_layer])
@pytest.mark.parametrize("stage", ["before", "after"])
def test_netron_opens_our_json(tmp_path, build, stage):
    netron = pytest.importorskip("netron", reason="pip install netron")
    g = build() if stage == "before" else apply_passes(build(), pipeline(), PassContext())
    path = tmp_path / f"{build.__name__}_{stage}.json"
    path.write_text(g.json())
    address = netron.start(str(path), browse=False)
    try:
        with browsing() as (page, _, errors):
            page.goto(f"http://{address[0]}:{address[1]}")
            consent = page.locator("#message-button")
            consent.wait_for(state="visible", timeout=30_000)
            consent.click()
            page.locator("#target .node").first.wait_for(state="attached", timeout=30_000)
            keep(page, path.stem)
            work = Counter(n.op.name for n in g.nodes if not n.is_variable and not n.is_constant)
            for op, times in work.items():
                boxes = page.locator("#target .node-item text", has_text=re.compile(f"^{op}$"))
                assert boxes.count() == times, op
            assert errors == []
    finally:
        netron.stop(address)
