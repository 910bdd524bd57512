"""The report of a study as a colleague gets it: one folder, opened from disk, complete in itself."""

from urllib.parse import unquote, urlsplit

import pytest

from tests.browser import browsing

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(browsing.missing()), reason=browsing.missing())]
REPORTS = sorted((browsing.PROJECT_ROOT / "reports").glob("*/index.html"))
PHONE, DESK = (390, 844), (1400, 1000)
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
def test_every_link_leads_somewhere_inside_the_folder(browser, index):
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
                assert there.is_file() and there.is_relative_to(index.parent.resolve()), f"{page.name}: {link} leads nowhere"
                if parts.fragment and there == page:
                    found = browser.execute_script("return !!document.getElementById(arguments[0])", unquote(parts.fragment))
                    assert found, f"{page.name}: nothing is called {parts.fragment}"


@of_a_study
def test_every_picture_is_drawn_and_described(browser, index):
    load(browser, index)
    broken = browser.execute_script("return [...document.images].filter(image => !image.naturalWidth).map(image => image.src)")
    assert broken == []
    assert [text for text in browser.execute_script(_LINKS, "img", "alt") if len(text.strip()) < 10] == []
    assert len(browser.execute_script(_LINKS, "img", "alt")) == browser.execute_script("return document.images.length")


@of_a_study
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_the_page_is_as_wide_as_the_screen(index, size):
    with browsing.chromium(*size) as browser:
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 2, "mobile": size == PHONE}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        load(browser, index)
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= size[0], f"{wide} pixels on a screen of {size[0]}"


@of_a_study
def test_it_is_readable_in_the_dark(browser, index):
    """Text and ground differ in both schemes by the 4.5 to 1 that WCAG 2.2 asks of text (success criterion 1.4.3)."""
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        load(browser, index)
        script = "const style = getComputedStyle(document.body), root = getComputedStyle(document.documentElement);"
        colours = browser.execute_script(script + "return [style.color, style.backgroundColor, root.backgroundColor]")
        text, *grounds = (channels(colour) for colour in colours)
        ground = next(
            (colour for colour in grounds if colour[3]), channels("rgb(18, 18, 18)" if scheme == "dark" else "rgb(255, 255, 255)")
        )
        assert contrast(text, ground) >= 4.5, f"{scheme}: {colours}"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


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
