"""Numbers in README and docs are those of the tables, the parameter files and the list of measures."""

import re

import pytest

from helpers.files import PROJECT_ROOT
from helpers.measures.registry import ranked
from helpers.sweep.cost import planned_runs
from helpers.sweep.study_file import load_study

README = (PROJECT_ROOT / "README.md").read_text(encoding="utf-8")
STUDIES = (PROJECT_ROOT / "docs/studies.md").read_text(encoding="utf-8")
PAGE = re.compile(r"\[`(\w+)`\]\(reports/\w+/FINDINGS\.md\)")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.]*\w)")


def numbers(text):
    """Numbers of a text as they are written, without code and the targets of links."""
    return NUMBER.findall(re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text.replace(",", " ").replace("*", " ")))


def absent(text, page):
    """Numbers of a text that a page does not give to as many decimals."""
    there = [float(number) for number in numbers(page)]

    def given(number):
        decimals = len(number.partition(".")[2])
        return any(f"{value:.{decimals}f}" == number for value in there)

    return [number for number in numbers(text) if not given(number)]


def told_of_studies():
    """What the README says of each study: from the link to its page to the next one, or to the end of the section."""
    section = README.partition("## The answer\n")[2].partition("\n## ")[0]
    links = list(PAGE.finditer(section))
    ends = [*(link.start() for link in links[1:]), len(section)]
    return {link[1]: section[link.end() : end].partition("\n\n")[0] for link, end in zip(links, ends, strict=True)}


@pytest.mark.parametrize(("study", "text"), told_of_studies().items())
def test_a_number_that_the_readme_tells_of_a_study_stands_on_its_page(study, text):
    page = (PROJECT_ROOT / f"reports/{study}/FINDINGS.md").read_text(encoding="utf-8")
    assert numbers(text), f"the README tells no number of {study}"
    assert not absent(text, page)


def test_a_number_that_is_not_on_the_page_is_found():
    assert absent("r = 0.51 (-0.20 to 0.14) in 92 % of `60` [x](2.md)", "r is 0.50, -0.2 to 0.141, 91.8 %") == ["0.51"]
    assert numbers("64 px, 3/16 of 1,200 images; resnet18") == ["64", "3", "16", "1", "200"]


def test_the_number_of_measures_is_that_of_the_list():
    words = {"fifty": 50, "sixty": 60, "seventy": 70}
    (word,) = re.findall(r"asks of (\w+) measures", README)
    assert words[word] <= len([item for item in ranked().values() if item.family != "unlabelled"]) < words[word] + 10


@pytest.mark.parametrize(("study", "runs"), re.findall(r"^\| `(\w+)` \|[^|]*\| (\d+) runs", STUDIES, re.M))
def test_a_study_has_as_many_runs_as_the_docs_say(study, runs):
    every = load_study(PROJECT_ROOT / f"params/{study}.yaml", PROJECT_ROOT / "notebooks")
    training = [one for one in every if one.notebook.stem == "02_grid_training"]
    assert len(planned_runs(training[0].parameters)) == int(runs)
