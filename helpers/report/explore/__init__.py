"""Two explorers, in JupyterLab and on a page of the report.

Of measures against the gap, and of maps.
"""

from typing import Any

from IPython.display import Markdown

from helpers.report.style import interactive

TITLES = {
    "measures": "Which measure correlates with the gap?",
    "maps": "Where do the networks look?",
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
