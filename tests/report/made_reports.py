"""A small folder of reports: a study with a notebook, one that failed, and a sweep."""

import json

import nbformat
from nbformat import v4

HOSTILE = "<script>alert(1)</script>"
TABLE = "<table><tr><td>1</td></tr></table><p><code>tables/scores.csv</code></p>"


def executed(title, outputs=(), parameters=None):
    """An executed notebook of two cells."""
    cells = [
        v4.new_markdown_cell(f"# {title}"),
        v4.new_code_cell("secret_code = 1", outputs=list(outputs)),
    ]
    metadata = {
        "papermill": {"parameters": parameters or {}},
        "widgets": {"application/vnd.jupyter.widget-state+json": {"state": {}}},
    }
    return v4.new_notebook(cells=cells, metadata=metadata)


def write(path, notebook, results=()):
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)
    keys = ("name", "value", "low", "high", "unit")
    rows = [dict(zip(keys, (*result, ""), strict=True)) for result in results]
    if rows:
        path.with_name("results.json").write_text(json.dumps(rows))


def write_reports(reports):
    study = reports / "made"
    shown = {
        "text/html": TABLE,
        "text/markdown": "`tables/scores.csv`",
        "application/vnd.jupyter.widget-view+json": {"id": "a"},
    }
    outputs = [v4.new_output("display_data", dict([item])) for item in shown.items()]
    results = [("networks", 7, None, None), ("r_iou_gap", -0.5, -0.9, -0.1)]
    place = study / "04_baselines/04_baselines.ipynb"
    write(place, executed("04 Score every measure", outputs), results)
    (place.parent / "tables").mkdir()
    (place.parent / "tables/scores.csv").write_text("a\n1\n")
    (place.parent / "explorers").mkdir()
    explorer = {"kind": "measures", "question": "Which measure?", "said": HOSTILE}
    (place.parent / "explorers/measures.json").write_text(json.dumps(explorer))
    told = {"ename": "ValueError", "evalue": "no box", "traceback": ["no box"]}
    error = v4.new_output("error", **told)
    failed = study / "05_ablations.failed/05_ablations.ipynb"
    write(failed, executed("05 Robustness", [error]))
    for threshold, r in ((0.4, -0.3), (0.1, -0.2)):
        name = f"cam_threshold={threshold}"
        folder = study / "sweeps/03_cam_scoring" / name / "03_cam_scoring"
        write(
            folder / "03_cam_scoring.ipynb",
            executed("03", parameters={"cam_threshold": threshold, "study": "made"}),
            [("r_iou_gap", r, r - 0.1, r + 0.1), ("networks", 7, None, None)],
        )
    broken = study / "sweeps/03_cam_scoring/cam_threshold=0.6/03_cam_scoring.failed"
    write(broken / "03_cam_scoring.ipynb", executed("03", [error]))
    (study / "FINDINGS.md").write_text(
        "# made: which networks?\n\n**Some.**\n\n![a picture](04_baselines/a.png)\n"
    )
    (study / "04_baselines/a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return study
