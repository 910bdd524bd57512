"""Numbers in README and docs are those of the tables, the parameter files and the list of measures."""

import re

import pandas as pd
import pytest

from helpers.files import PROJECT_ROOT
from helpers.measures.registry import ranked
from helpers.statistics.permutation import holm
from helpers.sweep.cost import planned_runs
from helpers.sweep.study_file import load_study

README = (PROJECT_ROOT / "README.md").read_text(encoding="utf-8")
STUDIES = (PROJECT_ROOT / "docs/studies.md").read_text(encoding="utf-8")
PAGE = re.compile(r"\[`(?:reports/)?(\w+)`\]\((?:\.\./)?reports/\w+/FINDINGS\.md\)")
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


def told_of_studies(text):
    """What a text says of each study: from the link to its page to the next one, or to the end of the paragraph."""
    links = list(PAGE.finditer(text))
    ends = [*(link.start() for link in links[1:]), len(text)]
    return [(link[1], text[link.end() : end].partition("\n\n")[0]) for link, end in zip(links, ends, strict=True)]


@pytest.mark.parametrize(("study", "text"), [*told_of_studies(README), *told_of_studies(STUDIES)])
def test_a_number_that_is_told_of_a_study_stands_on_its_page(study, text):
    page = (PROJECT_ROOT / f"reports/{study}/FINDINGS.md").read_text(encoding="utf-8")
    assert numbers(text), f"no number is told of {study}"
    assert not absent(text, page)


def test_the_numbers_of_the_trade_off_point_are_those_of_its_tables():
    tables = PROJECT_ROOT / "reports/kappa_tiny20/tables"
    points = pd.read_csv(tables / "table2_tradeoff.csv")
    cells, errors = pd.read_csv(tables / "kappa_cells.csv"), pd.read_csv(tables / "table3_sign_error.csv")
    (own,) = points[points["family"] == "all named networks"].to_dict("records")
    bounds = points.loc[points["source"] == "Huang et al. 2025", "generalization_bound"]
    of_all = errors[errors["family"] == "all named networks"]
    lowest = of_all.groupby("measure").agg({"sign_error": "mean", "p_value": "first", "n": "first"}).sort_values("sign_error")
    p, n = lowest["p_value"].iloc[0], int(lowest["n"].iloc[0])
    clean = cells[(cells["ssim"] == cells["ssim"].max()) & (cells["unseen_fraction"] == 0)]
    told = {
        "within minutes, so weak ones (clean error from": f"{100 * clean['error_mean'].min():.0f} %",
        "At lambda": f"{own['lambda']:.0f} all together balance at SSIM {own['ssim']:.2f}",
        "backbone-unseen and": f"{own['weights_millions']:.1f} million weights (generalization bound {own['generalization_bound']:.2f};",
        "pretrained on millions of images,": f"{bounds.min():.2f} to {bounds.max():.2f})",
        "lowest sign error over the": f"{n * (n - 1) // 2} pairs, {lowest['sign_error'].iloc[0]:.2f}, which",
        "for the lowest of": f"{len(lowest)} measures is no finding (p {p:.2g} for it alone, {holm(lowest['p_value'])[0]:.2f} for all",
    }
    text = " ".join(STUDIES.split())
    assert lowest.index[0] == "effective_invariance" and own["unseen_fraction"] == 0.5
    assert [f"{words} {value}" for words, value in told.items() if f"{words} {value}" not in text] == []


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
