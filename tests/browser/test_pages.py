"""Pages of a report as a colleague opens them from disk, at a desk and on a phone."""

import base64
import json

import numpy as np
import pandas as pd
import pytest
import torch

from helpers.cams import localize
from helpers.data.boxes import box_masks
from helpers.report import pages
from helpers.report.explore import content
from helpers.report.explore.widget import Explorer
from tests.browser import browsing
from tests.report import made

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(browsing.MISSING), reason=browsing.MISSING),
]
screens = pytest.mark.parametrize(
    "size", [browsing.PHONE, browsing.DESK], ids=["phone", "desk"]
)
NAMES = (
    "index.html",
    "04_baselines.html",
    "explore.html",
    "../index.html",
    "../assets/glossary.html",
)


@pytest.fixture(scope="module")
def browser():
    with browsing.chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = made.write_report(tmp_path_factory.mktemp("reports") / "made")
    pages.write(folder)
    return folder


def of(browser, kind, script):
    """What a script gives for an explorer, which it calls ``box``."""
    return browser.execute_script(
        f"const box = document.querySelector('[data-kind={kind}]'); {script}"
    )


def change(browser, kind, control, value):
    """Set a control of an explorer, by its place, as a reader does."""
    set_value = (
        f"const one = box.querySelectorAll('select, input')[{control}]; "
        f"one.value = {value!r};"
    )
    of(
        browser,
        kind,
        f"{set_value} one.dispatchEvent(new Event("
        "one.tagName == 'SELECT' ? 'change' : 'input'))",
    )


@screens
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_scrolls_sideways_asks_another_host_or_has_an_error(
    browser, report, size, scheme
):
    for name in NAMES:
        assert (
            browsing.open_page(browser, (report / name).resolve(), size, scheme) == []
        ), name
        assert (
            browser.execute_script("return document.documentElement.scrollWidth")
            <= size[0]
        ), name
        wide = (
            "return [...document.images].filter(one => "
            "one.getBoundingClientRect().right > innerWidth).length"
        )
        assert browser.execute_script(wide) == 0, f"{name}: a figure is cut"
        signs = (
            "return [...document.querySelectorAll('main figure')].every(one => "
            "one.classList.contains('wide') == (one.scrollWidth > one.clientWidth "
            "+ 1))"
        )
        browsing.until(
            lambda signs=signs: browser.execute_script(signs),
            10,
            f"{name}: a sign of a wide figure stands elsewhere",
        )


def test_the_first_screen_begins_with_the_answer(browser, report):
    top = "return document.querySelector('.answer').getBoundingClientRect().top"
    for size in (browsing.DESK, browsing.PHONE):
        browsing.open_page(browser, report / "index.html", size)
        assert browser.execute_script(top) < size[1] / 2


@screens
def test_axes_and_points_lie_inside_their_boxes(browser, report, size):
    browsing.open_page(browser, report / "explore.html", size)
    for kind in ("measures", "maps", "curves"):
        drawn = (
            "return box.querySelectorAll('.plot .xtitle, .plot .ytitle, .plot "
            ".xtick text').length > 3"
        )
        browsing.until(
            lambda kind=kind, drawn=drawn: of(browser, kind, drawn),
            60,
            f"{kind} is not drawn",
        )
        inside = (
            "const plot = box.querySelector('.plot'), edge = "
            "plot.getBoundingClientRect();"
        )
        inside += (
            "return [...plot.querySelectorAll('.xtitle, .ytitle, .xtick text, "
            ".ytick text, .points path, .legendtext, .annotation-text')].map(one "
            "=> {"
        )
        inside += (
            "const r = one.getBoundingClientRect(); return r.left >= edge.left - 1 "
            "&& r.right <= edge.right + 1"
        )
        inside += " && r.top >= edge.top - 1 && r.bottom <= edge.bottom + 1 })"
        assert all(of(browser, kind, inside)), kind
        # Kinds of training are named beside their points, on a phone in the legend.
        where = ".legendtext" if size == browsing.PHONE else ".annotation-text"
        texts = (
            f"return [...box.querySelectorAll('.plot {where}')]"
            ".map(one => one.textContent)"
        )
        assert {"pretrained", "from scratch"} <= set(of(browser, kind, texts)), kind
        assert of(
            browser,
            kind,
            (
                "const plot = box.querySelector('.plot'); return plot.clientWidth "
                "<= plot.parentElement.clientWidth"
            ),
        )


def test_a_control_moves_points_and_a_click_shows_the_network(browser, report):
    from selenium.webdriver import ActionChains

    browsing.open_page(browser, report / "explore.html")
    said = "return box.querySelector('.said').textContent"
    first = browsing.until(lambda: of(browser, "measures", said), 60, "nothing is said")
    correlation = made.measures(made.catalogue())[["iou", "gap"]].corr().iloc[0, 1]
    r = f"r = {correlation:.2f}, 36 of 36"
    assert r in first
    change(browser, "measures", 0, "1")
    assert "pointing game" in of(browser, "measures", said)
    change(browser, "measures", 1, "2")
    assert "test accuracy (%): r = " in of(browser, "measures", said)
    change(browser, "measures", 3, "0.001")
    assert "3 of 36" in of(browser, "measures", said)
    points = browser.find_elements("css selector", "[data-kind=measures] .points path")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", points[0])
    ActionChains(browser).move_to_element(points[0]).click().perform()
    card = "return box.querySelector('.card').innerText"
    browsing.until(
        lambda: "learning rate 0.001" in of(browser, "measures", card),
        20,
        "no card of the network",
    )


def test_the_gallery_counts_as_the_tables_do(browser, report):
    """The numbers below the pictures, which the page counts, are the kernel's."""
    browsing.open_page(browser, report / "explore.html")
    told = (
        "return [...box.querySelectorAll('.pictures > div:first-of-type "
        "figcaption')].map(one => one.textContent.split(' ')[0])"
    )
    browsing.until(
        lambda: len(of(browser, "maps", told)) == 6, 60, "no picture is drawn"
    )
    content = of(
        browser,
        "maps",
        "return JSON.parse(document.getElementById('values').textContent)"
        "[1].models[0].maps",
    )
    maps = (
        torch.frombuffer(bytearray(base64.b64decode(content)), dtype=torch.uint8).view(
            -1, made.SIDE, made.SIDE
        )
        / 255
    )
    boxes = box_masks(torch.from_numpy(made.kept_maps()["boxes"]), made.SIZE)
    for place, values in zip(
        (0, 8), localize.iou_at(maps, boxes, [0.05, 0.45]), strict=True
    ):
        change(browser, "maps", 1, str(place))
        assert of(browser, "maps", told) == [f"{value:.2f}" for value in values]
    before = of(browser, "maps", "return box.querySelector('.said').textContent")
    change(browser, "maps", 0, "2")
    assert set(of(browser, "maps", told)) <= {"inside", "outside"}
    assert (
        "pointing game, above chance"
        in of(browser, "maps", "return box.querySelector('.said').textContent")
        != before
    )


IN_LAB = """
const [source, content, removed, done] = arguments;
const library = "window.Plotly = { react: box => {"
  + " box.textContent = 'drawn'; box.on = () => {}; } }";
const model = answers => {
  const heard = [];
  const answer = () => heard.forEach(hear => hear({ library }));
  return {
    on: (name, hear) => heard.push(hear), get: () => content,
    send: () => answers && setTimeout(answer, 50),
  };
};
const box = () => document.body.appendChild(document.createElement("div"));
delete window.Plotly;
delete window.workbookPlotly;
const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
import(address).then(({ default: widget }) => {
  const remove = widget.render({ model: model(!removed), el: box() }), second = box();
  widget.render({ model: model(removed), el: second });
  if (removed) remove?.();
  setTimeout(() => done(second.querySelector(".plot")?.textContent ?? "empty"), 1500);
});
"""


@pytest.mark.parametrize("removed", [True, False])
def test_an_explorer_is_drawn_in_lab_also_where_the_first_is_gone_before_plotly_came(
    browser, removed
):
    """The first asks for plotly.js, and gets it unless it is removed before."""
    histories = pd.DataFrame({"epoch": [1], "train_loss": [0.5]})
    models = made.catalogue().iloc[:1]
    shown = content.curves(models, histories.assign(run_id=models["run_id"].iloc[0]))
    browser.get("about:blank")
    drawn = browser.execute_async_script(
        IN_LAB, Explorer._esm, json.dumps(shown), removed
    )
    assert drawn == "drawn"


def test_a_long_table_sorts_by_its_exact_numbers(browser, report):
    browsing.open_page(browser, report / "04_baselines.html")
    heads = browser.execute_script(
        "return [...document.querySelectorAll('.sortable thead th')].map(one "
        "=> one.textContent.trim())"
    )
    place = heads.index("gap (points)")
    height = "return document.querySelector('.table').offsetHeight"
    before = browser.execute_script(height)
    values = (
        "return [...document.querySelectorAll('.sortable tbody tr')].map(row => "
        "row.cells[arguments[0]])"
    )
    values += ".map(cell => Number(cell.dataset.order ?? cell.textContent))"
    for _ in range(2):
        browser.execute_script(
            "document.querySelectorAll('.sortable thead th')[arguments[0]].click()",
            place,
        )
    np.testing.assert_allclose(
        browser.execute_script(values, place),
        sorted(100 * made.catalogue()["gap"], reverse=True)[:10],
        rtol=1e-5,
    )
    browser.execute_script(
        "document.querySelector('.dt-paging-button.last').click()"
    )  # of six rows
    assert browser.execute_script(height) >= before, "what stands below jumps"
