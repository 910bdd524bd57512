"""Three explorers: what predicts the gap, where networks look, how they trained; in JupyterLab, and on a page of the report."""

from typing import Any

from IPython.display import Markdown

from helpers.report.tables import interactive

TITLES = {
    "measures": "Which measure goes with the gap?",
    "maps": "Where do the networks look?",
    "curves": "How did the networks train?",
}


def show(kind: str, *given: Any) -> Any:
    """The explorer of a kind of ``TITLES``, of what ``content.<kind>`` takes; a line of text where no reader can touch it."""
    if not interactive():
        return Markdown(f"*{TITLES[kind]}* Explore it by hand in JupyterLab (`make lab`), or on the report's page `explore.html`.")
    from helpers.report.explore import content
    from helpers.report.explore.widget import Explorer

    return Explorer(getattr(content, kind)(*given))
