"""Three explorers, in JupyterLab and on a page of the report.

Of measures against the gap, of maps, and of training curves.
"""

from pathlib import Path
from typing import Any

from IPython.display import Markdown

from helpers.files import from_root, table_of
from helpers.report.style import interactive
from helpers.report.tables import intact

TITLES = {
    "measures": "Which measure correlates with the gap?",
    "maps": "Where do the networks look?",
    "curves": "How did the networks train?",
}


def show(kind: str, *arguments: Any) -> Any:
    """An explorer; outside of JupyterLab a line of text.

    Args:
        kind: of ``TITLES``.
        arguments: of the function of ``content`` that is named as the kind.
    """
    if not interactive():
        return Markdown(
            f"*{TITLES[kind]}* Explore it by hand in JupyterLab (`make lab`), or on "
            "the report's page *Explore by hand* (`make pages`)."
        )
    from helpers.report.explore import content
    from helpers.report.explore.widget import Explorer

    return Explorer(getattr(content, kind)(*arguments))


def published(folder: Path | str) -> Any:
    """All explorers of a published report, for a clone without images and runs.

    Args:
        folder: reports/<study>.

    Returns:
        The explorers in a column; None outside of JupyterLab.
    """
    folder = from_root(folder)
    if not interactive() or not table_of(folder, "catalogue.csv").is_file():
        return None
    from ipywidgets import HTML, VBox

    from helpers.report.explore.content import of_report
    from helpers.report.explore.widget import Explorer

    with intact(folder):
        contents = of_report(folder)
    parts = []
    for content in contents:
        title = HTML(f"<h3>{TITLES[content['kind']]}</h3>")
        parts += [title, Explorer(content)]
    return VBox(parts)
