"""An explorer in JupyterLab: the script of the page, its content from the kernel, plotly.js once for a page.

plotly's own ``FigureWidget`` brings a library of 4.8 MB for each figure; where a browser has not read it after 2 s, anywidget gives up
and the figure stays empty.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anywidget
import plotly.offline
import traitlets

_TEMPLATES = Path(__file__).parents[1] / "templates"
_LAB = """
export default { render({ model, el }) {
  window.workbookPlotly ??= new Promise(resolve => {
    const receive = message => {
      if (!message?.library) return;
      model.off("msg:custom", receive);
      const script = document.createElement("script");
      script.src = URL.createObjectURL(new Blob([message.library], { type: "text/javascript" }));
      script.onload = () => resolve(window.Plotly);
      document.head.append(script);
    };
    model.on("msg:custom", receive);
    model.send("library");
  });
  el.classList.add("explorer");
  window.workbookPlotly.then(Plotly => explorer(el, JSON.parse(model.get("content")), Plotly));
} };
"""


class Explorer(anywidget.AnyWidget):
    """One explorer; all that a reader does with it happens in the browser."""

    _esm = (_TEMPLATES / "explore.js").read_text() + _LAB
    _css = (_TEMPLATES / "explore.css").read_text()
    content = traitlets.Unicode("{}").tag(sync=True)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "Explorer":
        """The explorer of some content, which answers when the page asks for plotly.js."""
        made = cls(content=json.dumps(content, allow_nan=False))
        made.on_msg(lambda widget, message, buffers: widget.send({"library": plotly.offline.get_plotlyjs()}))
        return made
