"""Pages in a browser: nothing is asked of another host, and no page is too wide."""

import pytest

from helpers.report import pages
from tests.browser import browsing
from tests.report.made_reports import write_reports

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(browsing.MISSING), reason=browsing.MISSING),
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [browsing.DESK, browsing.PHONE])
def test_pages_open_from_disk_without_errors_and_fit_the_screen(tmp_path, size, scheme):
    study = write_reports(tmp_path / "reports")
    (study / "FINDINGS.md").write_text("# made\n\n**Some.**\n")  # without its picture
    first = pages.build(tmp_path / "reports", tmp_path / "pages/source")
    made = first.parent / "made"
    with browsing.chromium() as browser:
        for page in (
            first,
            made / "04_baselines/04_baselines.html",
            made / "sweeps/03_cam_scoring/index.html",
        ):
            assert browsing.open_page(browser, page, size, scheme) == []
            width = browser.execute_script("return document.body.scrollWidth")
            assert width <= size[0]
