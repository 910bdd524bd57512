"""Numbers in README and docs are those of the tables, the parameter files and the list of measures; what they name is there."""

import importlib.util
import io
import json
import re
import tomllib
from contextlib import redirect_stdout
from functools import cache

import numpy as np
import pytest
from PIL import Image

from helpers.checkpoints.__main__ import main as judge_checkpoints
from helpers.files import PROJECT_ROOT
from helpers.measures.registry import ranked
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
OF_SNAKEMAKE = {
    "--retries",
    "--executor",
    "--jobs",
    "--workflow-profile",
    "--cores",
    "--config",
}
WORDS = 500  # that the README may have
MADE = {"params/birds.yaml"}  # by the command beside which it is named
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
    """What a text says of each study: from the link to its page to the next one, or to the end of the paragraph."""
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


def test_a_number_that_is_not_on_the_page_is_found():
    assert absent(
        "r = 0.51 (-0.20 to 0.14) in 92 % of `60` [x](2.md)",
        "r is 0.50, -0.2 to 0.141, 91.8 %",
    ) == ["0.51"]
    assert numbers("64 px, 3/16 of 1,200 images; resnet18") == [
        "64",
        "3",
        "16",
        "1",
        "200",
    ]


def test_the_number_of_measures_is_that_of_the_list():
    listed = ranked().values()
    count = len(listed)
    without_others = [item for item in listed if item.family != "unlabelled"]
    assert f"which of {count} measures" in README
    words = PAGES["docs/measures.md"]
    assert f"The {count} measures" in words
    assert f"{len(without_others)} of them from training images alone" in words


def test_what_the_readme_says_of_the_rule_is_what_notebook_12_found():
    report = PROJECT_ROOT / "reports/across/12_across_studies"
    results = {
        item["name"]: item for item in json.loads((report / "results.json").read_text())
    }
    error = results["judged_mean_error"]
    assert f"of {results['judged_networks']['value']:.0f} networks of other" in README
    told = f"{error['value']:.1f} points ({error['low']:.1f} to {error['high']:.1f};"
    assert told in README.replace("\n", " ")
    of_fit = results["judged_error_training_accuracy_and_loss"]["value"]
    assert f"training accuracy and loss err by {of_fit:.1f}" in README
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


def code(text):
    """What a page gives as code: the lines of its blocks without their remarks, and its spans."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.M | re.S)
    spans = re.findall(
        r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    )
    return [
        line.partition("  #")[0].strip()
        for block in blocks
        for line in block.splitlines()
    ] + spans


def absent_links(page, text):
    """Targets of links of a page that lead to no file, or to no heading of one."""
    for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", text):
        name, _, heading = target.partition("#")
        path = (PROJECT_ROOT / page).parent / name if name else PROJECT_ROOT / page
        headings = (
            re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
            if heading and path.is_file()
            else []
        )
        if not path.exists() or (
            heading
            and heading
            not in [
                re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-")
                for one in headings
            ]
        ):
            yield target


def absent_names(text):
    """Paths, targets of make, studies, modules, options and extras in the code of a page that there are not, but for places to fill in."""
    targets = set(
        re.findall(
            r"^([a-z]+):", (PROJECT_ROOT / "Makefile").read_text(encoding="utf-8"), re.M
        )
    )
    extras = tomllib.loads(
        (PROJECT_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )["project"]["optional-dependencies"]
    known_of = {
        "snakemake": OF_SNAKEMAKE,
        "helpers.checkpoints": options(judge_checkpoints),
    }
    for part in code(text):
        paths = re.findall(
            r"(?<![\w./])(?:helpers|params|notebooks|docs|tests|benchmarks)/[\w./<>*-]*",
            part,
        )
        yield from (
            path
            for path in paths
            if not re.search(r"[<*]", path)
            and path not in MADE
            and not (PROJECT_ROOT / path).exists()
        )
        modules = re.findall(r"-m (\w+(?:\.\w+)+)", part)
        flags = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", part))
        known = (
            set().union(*(known_of.get(name, flags) for name in modules))
            if modules
            else set().union(*known_of.values())
        )
        studies = re.findall(r"STUDY=(\w+)", part) + re.findall(
            r"reports/(?!_site)(\w+)", part
        )
        yield from (
            name for name in re.findall(r"\bmake ([a-z]+)", part) if name not in targets
        )
        yield from (
            name
            for name in studies
            if f"params/{name}.yaml" not in MADE
            and not (PROJECT_ROOT / f"params/{name}.yaml").is_file()
        )
        yield from (name for name in modules if importlib.util.find_spec(name) is None)
        yield from (
            name
            for group in re.findall(r"pip install '\.\[([\w,]+)\]'", part)
            for name in group.split(",")
            if name not in extras
        )
        yield from sorted(flags - known) if modules or part.startswith("--") else ()


@cache
def options(main):
    """Options of a command, as its help lists them."""
    with pytest.raises(SystemExit), redirect_stdout(io.StringIO()) as shown:
        main(["--help"])
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", shown.getvalue()))


def test_the_readme_is_one_page():
    assert len(README.split()) <= WORDS


@pytest.mark.parametrize("page", sorted(PAGES))
def test_what_a_page_names_is_there(page):
    assert [*absent_links(page, PAGES[page]), *absent_names(PAGES[page])] == []


def test_what_is_not_there_is_found():
    text = "[a](docs/no.md) [b](README.md#no) [c](docs/studies.md#a-study) [d](https://x.org)\n```\nmake no STUDY=none  # make nothing\n"
    text += "python -m helpers.checkpoints params/no.yaml --no\npython -m helpers.nothing --other\n```\n"
    text += "`--never N` `pip install '.[nope]'` `ray --head`"
    assert [*absent_links("README.md", text)] == ["docs/no.md", "README.md#no"]
    assert [*absent_names(text)] == [
        "no",
        "none",
        "params/no.yaml",
        "--no",
        "helpers.nothing",
        "--never",
        "nope",
    ]


def test_the_folders_of_the_contributors_page_are_those_of_the_project():
    page = (PROJECT_ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (tree,) = re.findall(r"^```\n(notebooks/.*?)^```", page, re.M | re.S)
    named = {
        name
        for line in tree.splitlines()
        for name in re.findall(r"(\w+)/", re.split(r" {4,}", line.strip())[0])
    }
    assert {
        path.parent.name for path in (PROJECT_ROOT / "helpers").glob("*/__init__.py")
    } <= named
    assert all(
        (PROJECT_ROOT / name).is_dir() or (PROJECT_ROOT / "helpers" / name).is_dir()
        for name in re.findall(r"(\w+)/", tree)
    )


def prose():
    """Running text of pages, templates and notebooks, by file."""
    for path in (PROJECT_ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts = [c["source"] for c in cells if c["cell_type"] == "markdown"]
        yield path.name, "".join("".join(text) for text in texts)
    for pattern in (
        "*.md",
        "docs/*.md",
        "params/*.j2",
        "helpers/*/templates/*.j2",
    ):
        for path in PROJECT_ROOT.glob(pattern):
            if path.name != "CHANGELOG.md":
                yield path.name, path.read_text(encoding="utf-8")


def test_running_text_is_plain():
    banned = re.compile(r"goes with|go with the gap|so many|is said|stands twice")
    assert banned.search("IoU goes with a smaller gap")
    found = [(name, banned.findall(text)) for name, text in prose()]
    assert len(found) > 20
    assert [pair for pair in found if pair[1]] == []
