"""Explorers in JupyterLab: each is drawn and answers a click."""

import nbformat
import pytest

from tests.browser import browsing
from tests.report import made

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(browsing.MISSING), reason=browsing.MISSING),
]
CELLS = [
    "from pathlib import Path\nfrom helpers.report import explore, tables\n"
    "from tests.report import made\nfolder = Path('made')",
    "models = tables.read(folder, 'catalogue')\n"
    "explore.show('measures', made.measures(models), made.TITLES)",
    "explore.show('maps', models, made.kept_maps())",
    "explore.show('curves', models, tables.read(folder, 'histories', '.parquet'))",
]


def test_every_explorer_answers_a_click(tmp_path):
    from selenium.webdriver import ActionChains

    made.write_report(tmp_path / "made")
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(text) for text in CELLS]
    )
    notebook.metadata.kernelspec = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    nbformat.write(notebook, tmp_path / "explore.ipynb")
    with browsing.jupyterlab(tmp_path) as address, browsing.chromium() as browser:
        assert browsing.run_notebook(browser, address("explore.ipynb")) == []
        drawn = (
            "return [...document.querySelectorAll('.explorer')].filter(box => "
            "box.querySelector('.plot .trace')).length"
        )
        browsing.until(
            lambda: browser.execute_script(drawn) == 3,
            120,
            "three explorers are not drawn",
        )
        for box in browser.find_elements("css selector", ".explorer"):
            browser.execute_script(
                "arguments[0].querySelector('.plot').scrollIntoView({block: 'center'})",
                box,
            )
            point = (
                "const plot = arguments[0].querySelector('.plot'), { xaxis, yaxis "
                "} = plot._fullLayout, { x, y } = plot.data[0],"
            )
            point += "area = plot.querySelector('.nsewdrag').getBoundingClientRect();"
            point += (
                "return [xaxis.d2p(x[1]), yaxis.d2p(y[1]), area.width, area.height]"
            )
            x, y, width, height = browser.execute_script(point, box)
            area = box.find_element("css selector", ".nsewdrag")
            ActionChains(browser).move_to_element_with_offset(
                area, round(x - width / 2), round(y - height / 2)
            ).click().perform()
            card = "return arguments[0].querySelector('.card').innerText"
            browsing.until(
                lambda box=box, card=card: (
                    "learning rate" in browser.execute_script(card, box)
                ),
                20,
                "no card of the network",
            )
        assert browsing.errors(browser) == []
