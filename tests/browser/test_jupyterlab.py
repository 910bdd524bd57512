"""Explorers in JupyterLab: each is drawn and answers a click."""

import nbformat
import pytest

from tests.browser import browsing
from tests.project import KERNEL

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(browsing.MISSING), reason=browsing.MISSING),
]
CELLS = [
    "from pathlib import Path\nfrom helpers.report import explore\n"
    "from tests.report import made\nmodels = made.catalogue()\nfolder = Path('made')",
    "of_measures = explore.measures(made.measures(models), made.TITLES)\n"
    "explore.show(folder, of_measures)",
    "explore.show(folder, explore.maps(models, *made.maps_of_networks()))",
]
DRAWN = (
    "return [...document.querySelectorAll('.explorer')].filter(box => "
    "box.querySelector('.plot .trace')).length"
)
# Where the second point of a plot lies, from the middle of its area.
POINT = (
    "const plot = arguments[0].querySelector('.plot'); plot.scrollIntoView({block: "
    "'center'}); const {xaxis, yaxis} = plot._fullLayout, {x, y} = plot.data[0], area "
    "= plot.querySelector('.nsewdrag').getBoundingClientRect(); return "
    "[xaxis.d2p(x[1]) - area.width / 2, yaxis.d2p(y[1]) - area.height / 2]"
)
CARD = "return arguments[0].querySelector('.card').innerText.includes('learning rate')"


def test_every_explorer_answers_a_click(tmp_path):
    from selenium.webdriver import ActionChains

    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
    nbformat.write(notebook, tmp_path / "explore.ipynb")
    with browsing.jupyterlab(tmp_path) as address, browsing.chromium() as browser:
        assert browsing.run_notebook(browser, address("explore.ipynb")) == []
        browsing.until(lambda: browser.execute_script(DRAWN) == 2, 120, "two plots")
        for box in browser.find_elements("css selector", ".explorer"):
            place = [round(value) for value in browser.execute_script(POINT, box)]
            area = box.find_element("css selector", ".nsewdrag")
            mouse = ActionChains(browser)
            mouse.move_to_element_with_offset(area, *place).click().perform()

            def has_card(box=box):
                return browser.execute_script(CARD, box)

            browsing.until(has_card, 20, "no card of the network")
        assert browsing.errors(browser) == []
