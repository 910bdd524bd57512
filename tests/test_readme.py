"""Numbers in README and docs are those of tables and studies; what they name is there."""

import json
import re

import numpy as np
import pytest
from PIL import Image

from helpers.files import PROJECT_ROOT
from helpers.networks import resnet
from helpers.plan import planned_runs
from helpers.studies import load

README = (PROJECT_ROOT / "README.md").read_text(encoding="utf-8")
STUDIES = (PROJECT_ROOT / "docs/studies.md").read_text(encoding="utf-8")
PAGES = {
    path.relative_to(PROJECT_ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in PROJECT_ROOT.glob("docs/*.md")
}
PAGES |= {"README.md": README}
PAGE = re.compile(r"\[`(?:reports/)?(\w+)`\]\((?:\.\./)?reports/\w+/FINDINGS\.md\)")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.]*\w)")


def numbers(text):
    """Numbers of a text as they are written, without code and the targets of links."""
    return NUMBER.findall(
        re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text.replace(",", " ").replace("*", " "))
    )


def absent(text, page):
    """Numbers of a text that a page does not give to as many decimals."""
    there = [float(number) for number in numbers(page)]

    def given(number):
        decimals = len(number.partition(".")[2])
        return any(f"{value:.{decimals}f}" == number for value in there)

    return [number for number in numbers(text) if not given(number)]


def told_of_studies(text):
    """What a text says of each study, from the link to its page to the next link."""
    links = list(PAGE.finditer(text))
    ends = [*(link.start() for link in links[1:]), len(text)]
    return [
        (link[1], text[link.end() : end].partition("\n\n")[0])
        for link, end in zip(links, ends, strict=False)
    ]


@pytest.mark.parametrize(
    ("study", "text"), [*told_of_studies(README), *told_of_studies(STUDIES)]
)
def test_a_number_that_is_told_of_a_study_stands_on_its_page(study, text):
    page = (PROJECT_ROOT / f"reports/{study}/FINDINGS.md").read_text(encoding="utf-8")
    assert numbers(text), f"no number is told of {study}"
    assert not absent(text, page)


def test_what_the_readme_says_of_the_rule_is_what_notebook_12_found():
    report = PROJECT_ROOT / "reports/across/12_across_studies"
    results = json.loads((report / "results.json").read_text())
    results = {item["name"]: item for item in results}
    error = results["judged_mean_error"]
    words = README.replace("\n", " ")
    assert f"its {results['judged_networks']['value']:.0f} networks" in words
    interval = f"{error['low']:.1f} to {error['high']:.1f};"
    assert f"{error['value']:.1f} points (95 % interval {interval}" in words
    of_fit = results["judged_error_training_accuracy_and_loss"]["value"]
    assert f"predict them with an error of {of_fit:.1f}" in words
    r = results["judged_r_drop_gap_given_start_images_and_accuracy"]["value"]
    assert f"still correlate: r = {r:.2f}" in words
    unclear = results["judged_r_area_matched_iou_gap_given_start_images_and_accuracy"]
    assert unclear["low"] < 0 < unclear["high"]
    verdicts = (report / "tables/claims_of_the_rule.csv").read_text()
    assert verdicts.count("True") == 5 and "4 points,4.48,False" in verdicts


def test_the_lines_of_python_in_the_readme_score_a_network(tmp_path):
    (lines,) = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
    photographs = tmp_path / "photos"
    draws = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (photographs / name).mkdir(parents=True)
        for number in range(12):
            pixels = draws.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(photographs / name / f"{number}.png")
    folder = repr(str(photographs))
    lines = lines.replace('"photos"', folder)
    lines = lines.replace('"work/photos"', repr(str(tmp_path / "cache")))
    names = {"network": resnet.build("resnet18", 2, seed=0, width=0.125)}
    exec(lines, names)
    table = names["table"].set_index("measure")
    assert 0 <= table.loc["training_accuracy", "value"] <= 1
    assert "no box" in table.loc["pointing_game", "reason"]


@pytest.mark.parametrize(
    ("study", "runs"), re.findall(r"^\| `(\w+)` \|[^|]*\| (\d+) runs", STUDIES, re.M)
)
def test_a_study_has_as_many_runs_as_the_docs_say(study, runs):
    training = [
        one for one in load(study).executions if one.notebook == "02_grid_training"
    ]
    assert len(planned_runs(training[0].parameters)) == int(runs)


@pytest.mark.parametrize("page", sorted(PAGES))
def test_what_a_page_links_and_names_is_there(page):
    """Files, and targets of make."""
    text = PAGES[page]
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", text)
    folder = (PROJECT_ROOT / page).parent
    assert [link for link in links if not (folder / link).exists()] == []
    makefile = (PROJECT_ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z]+):", makefile, re.M)
    assert {*re.findall(r"(?:`|^)make ([a-z]+)", text, re.M)} <= {*targets}
