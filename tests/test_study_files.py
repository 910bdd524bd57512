"""Study files: what they ask for, what is refused, and which values are in force."""

import json
import re

import pytest
import yaml

from helpers import execute, studies
from helpers.files import PROJECT_ROOT, json_digest
from helpers.parameters import StudyError, declared, model_of
from helpers.studies import in_force, load, modules_behind

NAME = 'study: str = "demo"  # name\n'
CELLS = {
    "01_one": f"{NAME}images: int = 60  # images\n"
    'class_ids: list[str] = ["a", "b"]  # classes',
    "02_two": f"{NAME}rate: float = 0.5  # rate\n"
    'shard: str = ""  # share\njobs: int = 0  # processes',
    "04_four": f"{NAME}images: int = 60  # images\nrate: float = 0.5  # rate\n"
    'place: str = "work"  # place\njobs: int = 0  # more',
}
PLACES = '\nwork_dir: str = "work"  # work\nreports_dir: str = "reports"  # reports'


def write_notebook(root, stem, source):
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}}
    content = {"cells": [cell | {"source": source + PLACES}]}
    (root / f"notebooks/{stem}.ipynb").write_text(json.dumps(content))


@pytest.fixture
def project(tmp_path):
    """A folder of notebooks; called with the content of a study, it loads it."""
    for name in ("notebooks", "params"):
        (tmp_path / name).mkdir()
    for stem, source in CELLS.items():
        write_notebook(tmp_path, stem, source)

    def of(content, *options, name="mine", **more):
        text = content if isinstance(content, str) else yaml.safe_dump(content)
        (tmp_path / f"params/{name}.yaml").write_text(text)
        return load(name, *options, root=tmp_path, **more)

    of.root = tmp_path
    of({"notebooks": dict.fromkeys(CELLS)}, name="demo")
    return of


def test_values_are_the_files_the_common_ones_and_those_of_the_command(project):
    notebooks = {"04_four": {"rate": 1e-3}, "01_one": {}, "02_two": None}
    content = {"common": {"images": 7, "rate": 1}, "notebooks": notebooks}
    study = project(content, ["04_four.images=9", "jobs=2"])
    places = {"work_dir": "work", "reports_dir": "reports", "study": "mine"}
    assert [item.notebook for item in study.executions] == [*CELLS]
    after = [item.after for item in study.executions]
    assert after == [(), ("01_one",), ("01_one", "02_two")]
    one, two, four = (item.parameters for item in study.executions)
    assert one == {"images": 7, "class_ids": ["a", "b"]} | places
    assert two == {"rate": 1.0, "shard": "", "jobs": 2} | places
    assert four == {"images": 9, "rate": 0.001, "place": "work", "jobs": 2} | places
    assert isinstance(two["rate"], float)
    assert study.work == project.root / "work/mine"
    assert study.reports == project.root / "reports/mine"


def test_a_study_that_extends_another_shares_its_work_and_its_claims(project):
    claim = {"claim": "x", "measure": "iou", "question": "r_gap", "side": "below"}
    notebooks = {"01_one": {"images": 9}, "04_four": {"rate": 3.0}}
    project({"claims": [claim], "notebooks": notebooks}, name="base")
    study = project({"extends": "base", "run": ["04_four"], "common": {"rate": 2.0}})
    (four,) = study.executions
    assert four.parameters["rate"] == 2.0
    assert study.claims == [claim]
    with_claims = studies.depends(study, four, project.root)
    study.claims.clear()
    assert studies.depends(study, four, project.root) != with_claims
    base = four.parameters | {"study": "base"}
    assert not studies.as_claimed("04_four", four.parameters, project.root)
    assert studies.as_claimed("04_four", base | {"rate": 3.0}, project.root)
    assert study.work.name == "base" and study.reports.name == "mine"
    (alone,) = project({"extends": "base"}).executions
    assert alone.notebook == "04_four"
    with pytest.raises(StudyError, match="leave out claims, 01 and 02"):
        project({"extends": "base", "notebooks": {"01_one": {"images": 8}}})


def test_a_sweep_has_every_combination_in_order_and_shares_before_the_whole(project):
    content = {"notebooks": dict.fromkeys(CELLS), "shares": {"02_two": 2}}
    content["sweep"] = {"04_four": {"rate": [1, 2]}}
    study = project(content, [], ["04_four.place=a,'b c'"])
    swept = [item for item in study.executions if item.combination]
    assert [item.place for item in swept] == [
        f"sweeps/04_four/rate={rate},place={place}/04_four"
        for rate in ("1.0", "2.0")
        for place in ("a", f"~{json_digest('b c')}")
    ]
    assert {item.parameters["jobs"] for item in swept} == {1}  # side by side
    shares = [item for item in study.executions if item.notebook == "02_two"]
    assert [item.parameters["shard"] for item in shares] == ["1/2", "2/2", ""]
    assert shares[-1].after == ("01_one", "02_two@1_of_2", "02_two@2_of_2")
    assert len({item.name for item in study.executions}) == len(study.executions)


def of(stem, sweep=None, **values):
    """A study of one notebook, with a sweep of it."""
    return {"notebooks": {stem: values}, "sweep": {stem: sweep or {}}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("notebooks: [", "is not a study"),
        ("notebooks: {01_one: {images: 1, images: 2}}", "is not a study: .*duplicate"),
        ("notebooks: !!python/object/apply:os.getcwd []", "is not a study"),
        ("- 1", "is not a study"),
        ({"notebook": {}}, r"mine.yaml: no notebook \(did you mean 'notebooks'"),
        ("", "names no notebook to run"),
        ({"notebooks": {"01_on": {}}}, "no notebook '01_on' .did you mean '01_one'"),
        (of("01_one", imges=1), "01_one: no imges .did you mean 'images'"),
        (of("01_one") | {"common": {"x": 1}}, "no notebook has a parameter 'x'"),
        (of("01_one", images="x"), "images is 'x': Input should be"),
        (of("04_four", {"jobs": [1]}), "jobs cannot be swept"),
        (of("04_four", {"rate": 1}), "rate. is 1: Input should be a valid list"),
        (of("04_four", {"rate": [1, "x"]}), "rate is 'x'"),
        (of("04_four", {"rate": [1, 1.0]}), "rate.*contains duplicates"),
        (of("04_four") | {"shares": {"04_four": 2}}, "no shard"),
        (of("02_two") | {"shares": {"02_two": "x"}}, "02_two. is 'x'"),
        (of("04_four") | {"claims": [{"claim": "x"}]}, "claims: claim 1"),
        ({"extends": "mine", "notebooks": {}}, "is not a study|extends"),
    ],
)
def test_what_a_study_cannot_ask_for_is_told(project, content, message):
    with pytest.raises(StudyError, match=message):
        project(content)


def test_all_faults_are_told_at_once(project):
    content = {"notebooks": {"01_one": {"images": -1}, "04_four": {"rat": 1}}}
    with pytest.raises(StudyError) as refused:
        project(content, ["plase=x"])
    assert len(refused.value.faults) == 3
    # which is all that a notebook shows
    assert refused.value._render_traceback_() == [str(refused.value)]


def test_where_images_are_absent_records_are_read_and_a_sweep_runs_alone(project):
    for stem, source in CELLS.items():
        of_images = f'{source}\ndata_path: str = "no/where"  # images'
        write_notebook(project.root, stem, of_images)
    declared.cache_clear()
    model_of.cache_clear()
    content = {"notebooks": dict.fromkeys(CELLS)}
    study = project(content, [], ["04_four.rate=1,2"])
    assert studies.from_records(study) is study  # there are no records
    records = project.root / "reports/mine/records"
    records.mkdir(parents=True)
    (records / "data.json").write_text("{}")
    names = [item.name for item in studies.from_records(study).executions]
    assert names == ["04_four", *(f"04_four@rate={x}.0" for x in (1, 2))]
    alone = studies.from_records(study, only_combinations=True).executions
    assert [item.after for item in alone] == [(), ()]


def values(project, *cells, **changed):
    """What is in force after the first cell with changes ran, and further cells."""
    path = project.root / "notebooks/04_four.ipynb"
    namespace = {name: item.default for name, item in declared(path).items()} | changed
    for cell in cells:
        exec(cell, namespace)
    sources = ["", CELLS["04_four"], *cells, "report = ..."]
    return in_force("04_four", namespace | {"In": sources}, project.root)


def test_a_changed_cell_wins_over_the_study_and_papermill_over_both(project):
    project({"notebooks": {"04_four": {"images": 100, "rate": 1}}}, name="other")
    assert values(project)["images"] == 60
    theirs = values(project, study="other", place="disk")
    assert (theirs["images"], theirs["rate"], theirs["place"]) == (100, 1.0, "disk")
    assert values(project, study="other", images=7)["images"] == 7
    injected = '# Parameters\nstudy = "other"\nimages = 60\n'
    assert values(project, injected)["images"] == 60  # although it is the default
    for line, message in (
        ("imges = 1", "no imges .did you mean 'images'"),
        ("rate = '0,1'", "rate is '0,1': Input should be a valid number"),
        ("study = 'othr'", "othr.yaml does not exist .did you mean"),
        ("study = '../params/demo'", "study is '../params/demo'"),
    ):
        with pytest.raises(StudyError, match=message):
            values(project, f"# Parameters\n{line}")


def test_modules_behind_a_notebook_are_those_that_it_imports_and_their_tables(tmp_path):
    for name in ("one", "two"):
        (tmp_path / "helpers" / name).mkdir(parents=True)
    for name, source in {
        "one/__init__.py": "from helpers.two import x\nimport numpy",
        "two.py": "import json\n\ndef f():\n    from helpers import three",
        **dict.fromkeys(("__init__.py", "one.py", "three.py", "four.py"), ""),
        "two/a.csv": "",
    }.items():
        (tmp_path / "helpers" / name).write_text(source)
    cell = {"cell_type": "code", "source": "%time\nfrom helpers import one"}
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [cell]}))
    names = ("__init__.py", "one/__init__.py", "three.py", "two.py", "two/a.csv")
    found = modules_behind(tmp_path / "a.ipynb", tmp_path)
    assert found == [f"helpers/{name}" for name in names]
    published = modules_behind(PROJECT_ROOT / "notebooks/10_all_measures.ipynb")
    assert "helpers/statistics/published/sources.csv" in published


def test_a_notebook_that_is_split_into_shares_marks_where_it_sums_up():
    for path in (PROJECT_ROOT / "notebooks").glob("*.ipynb"):
        closing, works = [], []
        for place, cell in enumerate(json.loads(path.read_text())["cells"]):
            if execute.CLOSING in cell["metadata"].get("tags", []):
                closing.append(place)
            if re.search(r"(train_missing|select_shard)\(", "".join(cell["source"])):
                works.append(place)
        assert ("shard" in declared(path)) == bool(closing), path
        assert all(place < closing[0] for place in works), path
