"""Three explorers: what predicts the gap, where networks look, how they trained; in JupyterLab, and on a page of the report."""

from pathlib import Path
from typing import Any

from IPython.display import Markdown

from helpers.files import from_root
from helpers.report.tables import intact, interactive

TITLES = {
    "measures": "Which measure correlates with the gap?",
    "maps": "Where do the networks look?",
    "curves": "How did the networks train?",
}


def show(kind: str, *given: Any) -> Any:
    """The explorer of a kind of ``TITLES``, of what ``content.<kind>`` takes; a line of text where no reader can touch it."""
    if not interactive():
        return Markdown(
            f"*{TITLES[kind]}* Explore it by hand in JupyterLab (`make lab`), or on the report's page `explore.html`."
        )
    from helpers.report.explore import content
    from helpers.report.explore.widget import Explorer

    return Explorer(getattr(content, kind)(*given))


def published(folder: Path | str) -> Any:
    """All explorers of a published report (reports/<study>), for a clone without images and runs; None where nobody can touch them."""
    folder = from_root(folder)
    if not interactive() or not (folder / "tables/catalogue.csv").is_file():
        return None
    from ipywidgets import HTML, VBox

    from helpers.report.explore.content import of_report
    from helpers.report.explore.widget import Explorer

    with intact(folder):
        found = of_report(folder)
    return VBox(
        [
            part
            for one in found
            for part in (HTML(f"<h3>{TITLES[one['kind']]}</h3>"), Explorer(one))
        ]
    )
