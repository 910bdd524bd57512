"""The report of a study as a colleague gets it: one folder, opened from disk, complete in itself."""

import itertools
import os
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
import scipy.stats

from tests.browser import browsing

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(browsing.missing()), reason=browsing.missing())]
# The committed reports, or those of another folder that WORKBOOK_REPORTS names.
REPORTS = sorted(Path(os.environ.get("WORKBOOK_REPORTS", browsing.PROJECT_ROOT / "reports")).glob("*/index.html"))
PHONE, DESK = (390, 844), (1400, 1000)
EXPLORED = [path.with_name("explore.html") for path in REPORTS if path.with_name("explore.html").is_file()]
of_a_study = pytest.mark.parametrize("index", REPORTS, ids=lambda path: path.parent.name)
_LINKS = "return [...document.querySelectorAll(arguments[0])].map(e => e.getAttribute(arguments[1])).filter(value => value !== null)"
_WAITING = "return [...document.images].every(image => image.complete) && document.readyState == 'complete'"


@pytest.fixture(scope="module")
def browser():
    with browsing.chromium() as opened:
        yield opened


def load(browser, page):
    """Open a page from disk, draw all of its pictures, and give the errors of the console and the addresses asked for."""
    browser.get("about:blank")
    browser.get_log("browser")
    browsing.requests(browser)
    browser.get(page.as_uri())
    browser.execute_script("for (const image of document.images) image.loading = 'eager'")
    browsing.until(lambda: browser.execute_script(_WAITING), 60, f"{page.name} is not loaded")
    errors = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    return errors, browsing.requests(browser)


def pages(index):
    """The index and every page of the same folder that it links to."""
    return [index, *sorted(path for path in index.parent.glob("*.html") if path != index)]


def test_there_is_a_report_to_open():
    assert REPORTS, "no reports/<study>/index.html; make report writes one"


@of_a_study
def test_no_page_has_an_error_or_asks_another_host(browser, index):
    for page in pages(index):
        errors, addresses = load(browser, page)
        assert errors == [], page.name
        assert [address for address in addresses if urlsplit(address).scheme not in ("file", "data", "blob", "about", "chrome")] == [], (
            page.name
        )


@of_a_study
def test_every_link_leads_somewhere_inside_the_folder_or_the_shared_assets(browser, index):
    for page in pages(index):
        load(browser, page)
        targets = {"a[href]": "href", "img[src]": "src", "link[href]": "href", "script[src]": "src", "source[src]": "src"}
        for selector, attribute in targets.items():
            for link in browser.execute_script(_LINKS, selector, attribute):
                parts = urlsplit(link)
                if parts.scheme in ("http", "https", "mailto", "data", "blob"):
                    assert selector == "a[href]" or parts.scheme in ("data", "blob"), f"{page.name}: {link} is fetched from elsewhere"
                    continue
                assert not parts.scheme, f"{page.name}: {link}"
                there = (page.parent / unquote(parts.path)).resolve() if parts.path else page
                inside = any(there.is_relative_to(folder.resolve()) for folder in (index.parent, index.parents[1] / "assets"))
                assert there.is_file() and inside, f"{page.name}: {link} leads nowhere"
                if parts.fragment and there == page:
                    found = browser.execute_script("return !!document.getElementById(arguments[0])", unquote(parts.fragment))
                    assert found, f"{page.name}: nothing is called {parts.fragment}"


@of_a_study
def test_every_picture_is_drawn_numbered_and_described(browser, index):
    for page in pages(index):
        load(browser, page)
        broken = browser.execute_script("return [...document.images].filter(image => !image.naturalWidth).map(image => image.src)")
        assert broken == []
        described = browser.execute_script(_LINKS, "figure img", "alt")
        assert len(described) == browser.execute_script("return document.images.length") == len(set(described))
        captions = browser.execute_script("return [...document.querySelectorAll('figcaption strong:first-child')].map(e => e.textContent)")
        assert [text.rstrip(".").replace(". ", ": ", 1) for text in captions if text.startswith("Figure")] == described


@of_a_study
def test_tables_sort_and_search_and_keep_their_first_column(browser, index):
    for page in pages(index):
        load(browser, page)
        wanted = browser.execute_script(
            "const box = [...document.querySelectorAll('.table[data-rows]')].find(box => Number(box.dataset.rows) > 10);"
            "if (!box) return false; box.id = 'tried'; box.closest('details').open = true; box.scrollIntoView(); return true"
        )
        if not wanted:
            continue
        cells = "return [...document.querySelectorAll('#tried tbody tr')].map(row => row.cells[0].textContent)"
        before = browsing.until(lambda cells=cells: browser.execute_script(cells), 30, "the table is not drawn")
        assert browser.execute_script("return getComputedStyle(document.querySelector('#tried tbody td')).position") == "sticky"
        rows = "return [...document.querySelectorAll('#tried tbody tr')].map(row => row.textContent)"
        click = "document.querySelectorAll('#tried thead th')[arguments[0]].click()"
        sorts = False
        for column in range(browser.execute_script("return document.querySelectorAll('#tried thead th').length")):
            orders = []
            for _ in range(2):
                browser.execute_script(click, column)
                orders.append(browser.execute_script(rows))
            sorts |= orders[0] != orders[1]
        assert sorts, page.name
        browser.execute_script(
            "const box = document.querySelector('#tried input'); box.value = 'no such row'; box.dispatchEvent(new Event('input'))"
        )
        browsing.until(lambda cells=cells, before=before: browser.execute_script(cells) != before, 10, "the search finds all the same")


@of_a_study
def test_one_button_shows_and_hides_all_code(browser, index):
    for page in [page for page in pages(index) if page.stem[:2].isdigit()]:
        load(browser, page)
        opened = "return [...document.querySelectorAll('details.code')].map(fold => fold.open)"
        assert not any(browser.execute_script(opened))
        for state in (True, False):
            browser.find_element("id", "code-button").click()
            assert set(browser.execute_script(opened)) == {state}


@of_a_study
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_the_page_is_as_wide_as_the_screen(index, size):
    with browsing.chromium(*size) as browser:
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 2, "mobile": size == PHONE}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        for page in pages(index):
            load(browser, page)
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            assert wide <= size[0], f"{page.name}: {wide} pixels on a screen of {size[0]}"
            for box in browser.find_elements("css selector", ".table[data-rows]"):
                browser.execute_script("arguments[0].scrollIntoView()", box)
                row = "const row = arguments[0].querySelector('tbody tr'); return row && [...row.cells].map(cell => cell.offsetWidth)"
                kept, *others = browsing.until(lambda box=box, row=row: browser.execute_script(row, box), 20, f"{page.name}: no row")
                assert kept <= 0.6 * size[0] or not others, f"{page.name}: the column that stays leaves no room for the others"


@of_a_study
def test_it_is_readable_in_the_dark(browser, index):
    """Text and ground differ in both schemes by the 4.5 to 1 that WCAG 2.2 asks of text (success criterion 1.4.3)."""
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        for page in pages(index):
            load(browser, page)
            for kind, colour, ground in browser.execute_script(_COLOURS):
                assert contrast(channels(colour), channels(ground)) >= 4.5, f"{page.name}, {scheme}: {kind} is {colour} on {ground}"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


# Of every kind of text: its name, its colour, and the ground of the nearest element that has one.
_COLOURS = """
const ground = e => { while (e && getComputedStyle(e).backgroundColor == 'rgba(0, 0, 0, 0)') e = e.parentElement; return e; };
const kinds = ['body', 'a', '.note', '.small', '.said', '.answer', '.kind', 'select', 'button', 'pre', 'pre span', 'th', 'summary'];
return kinds.flatMap(kind => [...document.querySelectorAll(kind)].filter(e => e.textContent.trim()).slice(0, 60).map(e =>
    [kind, getComputedStyle(e).color, getComputedStyle(ground(e) || document.documentElement).backgroundColor]));
"""


@pytest.fixture(params=EXPLORED, ids=lambda path: path.parent.name)
def explored(browser, request):
    errors, _ = load(browser, request.param)
    browsing.until(lambda: browser.execute_script("return document.querySelectorAll('#scatter .point').length"), 30, "no point is drawn")
    yield browser
    assert errors + [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


POINTS = """return [...document.querySelectorAll('#scatter .trace')].flatMap(trace => [...trace.querySelectorAll('.point')].map(point =>
    [getComputedStyle(point).fill, point.__data__.data ?? trace.__data__[0].trace.customdata[point.__data__.i]]))"""
CHANGE = "const box = document.getElementById(arguments[0]); box[arguments[1]] = arguments[2]; box.dispatchEvent(new Event('change'))"


def said(browser):
    return browser.execute_script("return document.getElementById('said').textContent")


def test_every_list_and_axis_moves_the_points(explored):
    seen = "[...document.querySelectorAll('#scatter .point, #scatter .xtick text, #scatter .ytick text')]"
    place = f"return {seen}.map(e => e.getAttribute('transform') + e.textContent).join()"
    marks = "return [...document.querySelectorAll('#scatter .point')].map(e => e.getAttribute('d') + e.style.fill).join()"
    for name, looked in (("x", place), ("y", place), ("colour", marks), ("symbol", marks)):
        options = explored.execute_script("return [...document.getElementById(arguments[0]).options].map(option => option.value)", name)
        before, current = (
            explored.execute_script(looked),
            explored.execute_script("return document.getElementById(arguments[0]).value", name),
        )
        explored.execute_script(CHANGE, name, "value", next(value for value in reversed(options) if value != current))
        browsing.until(lambda looked=looked, before=before: explored.execute_script(looked) != before, 10, f"{name} changes nothing")
    for name in ("log-x", "log-y"):
        explored.execute_script(CHANGE, name, "checked", True)
        kind = f"return document.getElementById('scatter').layout.{name[-1]}axis.type"
        browsing.until(lambda kind=kind: explored.execute_script(kind) == "log", 10, f"{name} changes nothing")


def test_a_level_keeps_its_colour_whatever_is_filtered(explored):
    before = dict(map(reversed, explored.execute_script(POINTS)))
    boxes = "return document.querySelectorAll('#levels input:not([data-axis=analysed])').length"
    for number in range(explored.execute_script(boxes)):
        click = "document.querySelectorAll('#levels input:not([data-axis=analysed])')[arguments[0]].click()"
        explored.execute_script(click, number)
        after = dict(map(reversed, explored.execute_script(POINTS)))
        assert len(after) < len(before)
        assert after.items() <= before.items()
        explored.execute_script(click, number)


def test_a_box_tells_how_many_are_selected_and_a_click_all_of_one_model(explored):
    from selenium.webdriver import ActionChains

    everything = said(explored)
    assert "Pearson r" in everything
    plane = explored.find_element("css selector", "#scatter .nsewdrag")
    explored.execute_script("arguments[0].scrollIntoView({block: 'center'})", plane)
    width, height = plane.size["width"], plane.size["height"]
    drag = ActionChains(explored).move_to_element_with_offset(plane, -width // 2 + 4, -height // 2 + 4).click_and_hold()
    drag.move_by_offset(width // 3, height // 2).move_by_offset(width // 4, height // 3).release().perform()
    browsing.until(lambda: said(explored) != everything, 10, "the selection changes no number")
    assert "models selected" in said(explored)
    chosen = "return document.getElementById('scatter').data.flatMap(trace => trace.selectedpoints || []).length"
    assert said(explored).startswith(f"{explored.execute_script(chosen)} models selected")
    assert "that of the table" not in said(explored)
    explored.execute_script(CHANGE, "x", "value", explored.execute_script("return document.getElementById('x').value"))
    browsing.until(lambda: said(explored) == everything, 10, "what was selected stays so in another figure")
    point = explored.find_element("css selector", "#scatter .point")
    ActionChains(explored).move_to_element(point).click().perform()
    rows = "return document.querySelectorAll('#card tr').length"
    browsing.until(lambda: explored.execute_script(rows) > 3, 10, "the click shows no model")


def test_a_level_of_the_legend_can_be_hidden_and_the_numbers_follow(explored):
    before = said(explored)
    names = explored.find_elements("css selector", "#scatter .legendtoggle")
    explored.execute_script("arguments[0].scrollIntoView({block: 'center'})", names[0])
    names[0].click()
    browsing.until(lambda: said(explored) != before, 10, "the numbers are those of all")


def test_the_pages_statistics_are_those_of_scipy(explored):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 40))
    y += x
    r = scipy.stats.pearsonr(x, y)
    found = explored.execute_script("return workbook.pearson(...arguments)", x.tolist(), y.tolist())
    assert found == pytest.approx(r.statistic, abs=1e-12)
    low, high = explored.execute_script("return workbook.bootstrap(...arguments)", x.tolist(), y.tolist(), [str(k) for k in range(40)])
    places = rng.integers(40, size=(4000, 40))
    theirs = np.percentile([np.corrcoef(x[place], y[place])[0, 1] for place in places], [2.5, 97.5])
    assert [low, high] == pytest.approx(theirs, abs=0.05)  # a thousand draws know an end to some 0.01
    assert explored.execute_script("return workbook.bootstrap(...arguments)", x.tolist(), y.tolist(), ["a"] * 40) is None
    assert explored.execute_script("return Number.isNaN(workbook.pearson([1, 1, 1], [1, 2, 3]))")


def test_a_lasso_selects_as_a_box_does(explored):
    from selenium.webdriver import ActionChains

    everything = said(explored)
    explored.find_element("css selector", "#scatter [data-val=lasso]").click()
    plane = explored.find_element("css selector", "#scatter .nsewdrag")
    explored.execute_script("arguments[0].scrollIntoView({block: 'center'})", plane)
    width, height = plane.size["width"] - 8, plane.size["height"] - 8
    corners = ((width, 0), (0, height * 3 // 4), (-width, 0), (0, -height * 3 // 4))  # the upper three quarters of the plane
    loop = ActionChains(explored).move_to_element_with_offset(plane, -width // 2, -height // 2).click_and_hold()
    for x, y in corners:
        loop.move_by_offset(x, y)
    loop.release().perform()
    browsing.until(lambda: said(explored) != everything, 10, "the lasso changes no number")
    chosen = "return document.getElementById('scatter').data.flatMap(trace => trace.selectedpoints || []).length"
    assert said(explored).startswith(f"{explored.execute_script(chosen)} models selected")


def test_every_button_above_a_figure_can_be_pressed(explored):
    for plot in ("scatter", "curves"):
        explored.execute_script("document.getElementById(arguments[0])?.scrollIntoView({block: 'center'})", plot)
        if plot == "curves" and explored.find_elements("id", plot):
            browsing.until(lambda: explored.find_elements("css selector", "#curves .modebar-btn"), 20, "no run is drawn")
        for button in explored.find_elements("css selector", f"#{plot} .modebar-btn"):
            if button.get_attribute("data-title") and "Download" not in button.get_attribute("data-title"):  # which would write a file
                button.click()
    kept = "const plot = document.getElementById('scatter'); return [plot.layout.dragmode, plot.layout.xaxis.autorange]"
    assert explored.execute_script(kept) == ["lasso", True]  # the last that was pressed of the modes, and the axes as they were


def test_models_that_the_analysis_leaves_out_can_be_shown_too(explored):
    boxes = explored.find_elements("css selector", "#levels input[data-axis=analysed]")
    if not boxes:
        pytest.skip("every model of this report enters the analysis")
    training = "return [...document.getElementById('x').options].find(option => option.text.startsWith('training accuracy (%')).value"
    explored.execute_script(CHANGE, "x", "value", explored.execute_script(training))  # which every model has
    before = len(explored.execute_script(POINTS))
    explored.execute_script("arguments[0].closest('details').open = true; arguments[0].click()", boxes[0])
    browsing.until(lambda: len(explored.execute_script(POINTS)) > before, 10, "no model is added")


def test_an_axis_keeps_the_range_that_is_dragged_and_lets_it_go(explored):
    from selenium.webdriver import ActionChains

    if not explored.find_elements("id", "parallel"):
        pytest.skip("no hyperparameter of this report has two levels")
    explored.execute_script("document.getElementById('parallel').scrollIntoView({block: 'center'})")
    axes = "return [...document.querySelectorAll('#parallel .axis-brush rect.background')]"
    axis = browsing.until(lambda: explored.execute_script(axes), 20, "no axis is drawn")[-1]  # of the gap
    kept = "return document.getElementById('parallel').data[0].dimensions.at(-1).constraintrange ?? null"
    assert explored.execute_script(kept) is None
    height = axis.rect["height"]
    drag = ActionChains(explored).move_to_element_with_offset(axis, 0, -int(0.2 * height)).click_and_hold()
    drag.move_by_offset(0, int(0.2 * height)).move_by_offset(0, int(0.2 * height)).release().perform()
    low, high = browsing.until(lambda: explored.execute_script(kept), 10, "no range is kept")
    every = explored.execute_script("return document.getElementById('parallel').data[0].dimensions.at(-1).values")
    assert min(every) < low < high < max(every)
    ActionChains(explored).move_to_element_with_offset(axis, 0, -int(0.45 * height)).click().perform()  # beside the range
    browsing.until(lambda: explored.execute_script(kept) is None, 10, "the range is not let go")


def test_runs_can_be_chosen_and_smoothed(explored):
    if not explored.find_elements("id", "curves"):
        pytest.skip("this report has no history of its runs")
    press_training_curves(explored)


def press_training_curves(browser):
    """Press every control of the training curves; each moves what is drawn."""
    browser.execute_script("document.getElementById('curves').scrollIntoView()")
    lines = "return document.querySelectorAll('#curves .scatterlayer .trace').length"
    drawn = (
        "return [...document.querySelectorAll('#curves .scatterlayer path.js-line')].map(e => e.getAttribute('d') + e.style.stroke).join()"
    )
    count = browsing.until(lambda: browser.execute_script(lines), 20, "no run is drawn")
    for name in ("metric", "curve-colour"):
        before = browser.execute_script(drawn)
        options = browser.execute_script("return [...document.getElementById(arguments[0]).options].map(option => option.value)", name)
        browser.execute_script(CHANGE, name, "value", options[-1])
        browsing.until(lambda before=before: browser.execute_script(drawn) != before, 10, f"{name} changes nothing")
    browser.find_element("id", "smoothing").send_keys(browsing.RIGHT)
    browsing.until(lambda: browser.execute_script(lines) == 2 * count, 10, "the measured values are not kept behind the smooth ones")
    assert f"{count} of {count} runs; smoothed" in browser.find_element("id", "curves-said").text
    browser.execute_script("document.getElementById('runs').closest('details').open = true")
    browser.execute_script("document.getElementById('no-runs').click(); document.querySelector('#runs input').click()")
    browsing.until(lambda: browser.execute_script(lines) == 2, 10, "one run is not two lines")
    browser.execute_script("document.getElementById('all-runs').click()")
    browsing.until(lambda: browser.execute_script(lines) == 2 * count, 10, "not all runs are back")


@pytest.mark.parametrize("page", EXPLORED[:1], ids=lambda path: path.parent.name)
def test_on_a_phone_in_the_dark_the_same_controls_move_the_same_figures(page):
    with browsing.chromium(*PHONE) as browser:
        metrics = {"width": PHONE[0], "height": PHONE[1], "deviceScaleFactor": 2, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        colours = {}
        for scheme in ("light", "dark"):  # the second while the page is open, as the evening does
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            if not colours:
                errors, _ = load(browser, page)
            points = "return document.querySelectorAll('#scatter .point').length"
            browsing.until(lambda points=points: browser.execute_script(points), 30, "no point is drawn")
            browser.execute_script("document.getElementById('parallel').scrollIntoView()")
            scale = "return document.getElementById('parallel').data?.[0].line.colorscale.join()"
            colours[scheme] = browsing.until(lambda scale=scale: browser.execute_script(scale), 20, "no line is drawn")
        browsing.until(lambda: browser.execute_script(scale) != colours["light"], 10, "the lines keep the colours of the day")
        place = "return [...document.querySelectorAll('#scatter .point, #scatter .xtick text')].map(e => e.outerHTML).join()"
        for name in ("x", "y", "colour", "symbol"):
            before = browser.execute_script(place)
            options = browser.execute_script("return [...document.getElementById(arguments[0]).options].map(option => option.value)", name)
            browser.execute_script(CHANGE, name, "value", options[-1])
            browsing.until(lambda before=before: browser.execute_script(place) != before, 10, f"{name} changes nothing")
        if browser.find_elements("id", "curves"):  # not every report brings the history of its runs
            press_training_curves(browser)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= PHONE[0]
        assert errors + [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def channels(colour):
    """The three channels in [0, 1] and the opacity of a computed colour."""
    numbers = [float(part) for part in colour[colour.index("(") + 1 : -1].replace("/", ",").split(",")]
    return [*(value / 255 for value in numbers[:3]), numbers[3] if len(numbers) > 3 else 1.0]


def contrast(one, other):
    """Contrast ratio of WCAG 2.2, from 1 to 21."""

    def luminance(colour):
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in colour[:3]]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_is_that_of_the_standard():
    assert contrast(channels("rgb(0, 0, 0)"), channels("rgba(255, 255, 255, 1)")) == pytest.approx(21)
    assert contrast(channels("rgb(119, 119, 119)"), channels("rgb(255, 255, 255)")) == pytest.approx(4.48, abs=0.01)


def test_a_page_without_the_shared_folder_or_its_library_says_what_is_lacking_and_one_with_them_does_not(browser, tmp_path):
    shared = EXPLORED[0].parents[1] / "assets"
    said = "return document.body.innerText.startsWith('The folder assets beside the reports is missing')"
    for number, (page, given) in enumerate(itertools.product(("explore.html", "findings.html"), ([], ["pages.js", "explore.js"]))):
        lone = tmp_path / str(number) / "my" / page
        lone.parent.mkdir(parents=True)
        lone.write_text(EXPLORED[0].with_name(page).read_text())
        for name in given:
            (tmp_path / str(number) / "assets").mkdir(exist_ok=True)
            shutil.copy(shared / name, tmp_path / str(number) / "assets")
        load(browser, lone)
        assert browser.execute_script(said), (page, given)
        load(browser, EXPLORED[0].with_name(page))
        assert not browser.execute_script(said)
