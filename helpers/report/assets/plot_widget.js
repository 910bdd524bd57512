// A plotly figure in a notebook whose points can be clicked. The library comes from the kernel, once for a page, when the first figure
// is drawn: no other host is asked, and the widget itself is there at once.
function library(model) {
  window.workbookPlotly ??= new Promise((resolve) => {
    if (window.Plotly) return resolve(window.Plotly);
    const receive = (message) => {
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
  return window.workbookPlotly;
}

async function render({ model, el }) {
  const place = document.createElement("div");
  el.append(place);
  const Plotly = await library(model);
  const options = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["sendChartToCloud"] };
  const draw = async () => {
    const { data, layout } = JSON.parse(model.get("figure"));
    await Plotly.react(place, data, layout, options);
  };
  await draw();
  place.on("plotly_click", ({ points }) => {
    if (points[0].customdata === undefined) return;
    model.set("clicked", { id: points[0].customdata, count: (model.get("clicked").count ?? 0) + 1 });
    model.save_changes();
  });
  model.on("change:figure", draw);
}

export default { render };
