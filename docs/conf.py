"""What Sphinx takes to build the pages of reports: ``make pages``."""

from pathlib import Path

import plotly

project = "Which image classifiers will generalize?"
extensions = ["myst_nb"]
html_theme = "sphinx_book_theme"
html_title = project
html_theme_options = {
    "home_page_in_toc": True,
    "show_navbar_depth": 1,
    "navbar_persistent": [],
    "use_download_button": False,
    "footer_content_items": [],
}
html_context = {"default_mode": "auto"}
html_static_path = [
    "../helpers/report/templates",
    str(Path(plotly.__file__).parent / "package_data/plotly.min.js"),
]
html_css_files = ["pages.css"]
html_copy_source = False
nb_execution_mode = "off"
nb_merge_streams = True
nb_code_prompt_show = "code"
nb_code_prompt_hide = "code"
nb_ipywidgets_js = {}  # else pages load two scripts of other hosts
myst_enable_extensions = []  # no formulas: MathJax is another host's, too
suppress_warnings = ["mystnb.unknown_mime_type", "myst.header", "myst.xref_missing"]
