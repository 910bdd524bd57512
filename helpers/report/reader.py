"""Whether a reader can touch what a notebook shows."""

import os

from helpers.files import STAGING

SWITCH = "WORKBOOK_EXPLORE"  # environment variable: 1 shows explorers whatever runs the notebook, 0 never does


def interactive() -> bool:
    """Whether somebody can touch what is shown: the kernel belongs to a notebook that is open in Jupyter.

    Jupyter's server names the notebook in JPY_SESSION_NAME when it starts a kernel; papermill and nbconvert do not, and a sweep marks its
    kernels, so that one started inside JupyterLab is not taken for a reader. ``SWITCH`` overrides both.
    """
    asked = os.environ.get(SWITCH, "")
    if asked not in ("", "0", "1"):
        raise ValueError(f"{SWITCH} is {asked!r}; it must be 1 (show explorers), 0 (never), or not set")
    return asked == "1" if asked else bool(os.environ.get("JPY_SESSION_NAME")) and not os.environ.get(STAGING)
