"""An explorer in JupyterLab: the script of the page, with its content from the kernel.

plotly.js is loaded once for a page. plotly's own ``FigureWidget`` loads 4.8 MB for each
figure; where that takes a browser longer than 2 s, the figure stays empty.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anywidget
import plotly.offline
import traitlets

_TEMPLATES = Path(__file__).parent / "templates"
_LAB = """
// plotly.js is asked for once on a page; where who asked for it is gone before it came,
// the next explorer asks.
const plotly = window.workbookPlotly ??= { asker: null };
plotly.ready ??= new Promise(resolve => { plotly.resolve = resolve; });
export default { render({ model, el }) {
  let gone = false;
  el.classList.add("explorer");
  model.on("msg:custom", ({ library }) => {
    const script = document.createElement("script");
    script.onload = () => plotly.resolve(window.Plotly);
    const file = new Blob([library], { type: "text/javascript" });
    script.src = URL.createObjectURL(file);
    document.head.append(script);
  });
  const ask = () => {
    if (window.Plotly) plotly.resolve(window.Plotly);
    else if (!plotly.asker) {
      plotly.asker = el;
      model.send("library");
    }
  };
  ask();
  const timer = setInterval(ask, 300);
  plotly.ready.then(Plotly => {
    clearInterval(timer);
    if (!gone) explorer(el, JSON.parse(model.get("content")), Plotly);
  });
  return () => {
    gone = true;
    clearInterval(timer);
    if (plotly.asker === el) plotly.asker = null;
  };
} };
"""


class Explorer(anywidget.AnyWidget):
    """One explorer; all that a reader does with it happens in the browser."""

    _esm = (_TEMPLATES / "explore.js").read_text() + _LAB
    _css = (_TEMPLATES / "explore.css").read_text()
    content = traitlets.Unicode("{}").tag(sync=True)

    def __init__(self, content: Mapping[str, Any]) -> None:
        """Take the content of an explorer; the page asks for plotly.js later."""
        super().__init__(content=json.dumps(content, allow_nan=False))
        self.on_msg(lambda *_: self.send({"library": plotly.offline.get_plotlyjs()}))
