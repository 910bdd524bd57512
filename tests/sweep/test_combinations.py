"""Sweeps over parameters: what is executed, what is refused, what runs again."""

import json
from pathlib import Path

import pytest

from helpers.files import json_digest, write_json
from helpers.parameters import StudyError
from helpers.sweep.study import load_study, record_of
from tests.sweep.conftest import write_notebook

CELL = """threshold: float = 0.1  # of the map
method: str = "a"  # how
names: list[str] = ["a"]  # which
data_path: str = ""  # of files
jobs: int = 0  # side by side
shard: str = ""  # share"""
STEMS = ("01_a", "02_b", "03_c", "04_d", "08_h")
ODD = f"~{json_digest('b c')}"
SWEEP = {"method": ["a", "b c"], "threshold": [0.1, 1]}


@pytest.fixture
def project(tmp_path):
    """Five notebooks; gives a function that loads a study of them with a sweep."""
    for name in ("notebooks", "params", "helpers"):
        (tmp_path / name).mkdir()
    for stem in STEMS:
        cell = CELL if stem != "04_d" else "threshold: float = 0.5  # of the map"
        write_notebook(tmp_path / f"notebooks/{stem}.ipynb", cell, stem)

    def load(sweep, *variations, **common):
        content = {"notebooks": {stem: {} for stem in STEMS}, "common": common}
        text = json.dumps(content | {"sweep": sweep})  # which is YAML
        (tmp_path / "params/mine.yaml").write_text(text)
        return load_study("mine", root=tmp_path, variations=variations)

    load.root = tmp_path
    return load


def combinations(study):
    return [item for item in study.executions if item.combination]


def faults(project, sweep, *variations):
    with pytest.raises(StudyError) as refused:
        project(sweep, *variations)
    return [
        fault.partition("mine.yaml: ")[2] or fault for fault in refused.value.faults
    ]


def test_each_combination_of_the_values_is_an_execution_with_a_report_of_its_own(
    project,
):
    study = project({"03_c": SWEEP})
    found = combinations(study)
    assert [item.name for item in found] == [
        "03_c@threshold=0.1,method=a",
        f"03_c@threshold=0.1,method={ODD}",
        "03_c@threshold=1.0,method=a",
        f"03_c@threshold=1.0,method={ODD}",
    ]
    values = [
        (item.parameters["threshold"], item.parameters["method"]) for item in found
    ]
    assert values == [(0.1, "a"), (0.1, "b c"), (1.0, "a"), (1.0, "b c")]
    assert all(
        item.after == ("02_b",) and item.parameters["jobs"] == 1 for item in found
    )
    places = [json.loads(study.job(item))["reports"] for item in found]
    assert places[0] == "reports/mine/sweeps/03_c/threshold=0.1,method=a"
    assert len(set(places)) == 4
    # The study's own execution, and those that follow, have the study's own values.
    assert study.values["threshold"] == 0.1 and len(study.executions) == 5 + 4
    asked = json.loads(study.job())["sweeps"]
    values = {"threshold": [0.1, 1.0], "method": ["a", "b c"]}
    names = ["threshold", "method"]
    assert asked == [
        {"notebook": "03_c", "parameters": names, "values": values, "through": []}
    ]


def test_the_chain_behind_is_executed_for_each_combination_where_the_sweep_says_so(
    project,
):
    through = {"through": ["08_h", "04_d"]}
    study = project({"03_c": {"threshold": [0.2], "method": ["b"]} | through})
    first, second, third = combinations(study)
    assert second.name == "04_d@03_c@threshold=0.2,method=b"
    assert second.parameters["threshold"] == 0.2 and "method" not in second.parameters
    assert set(second.after) == {"02_b", first.name}
    # 08 reads what 04 made: of this combination, not the study's own.
    assert set(third.after) == {first.name, second.name}
    assert json.loads(study.job(third))["needs"] == [first.name, second.name]
    folder = "reports/mine/sweeps/03_c/threshold=0.2,method=b"
    assert {json.loads(study.job(item))["reports"] for item in combinations(study)} == {
        folder
    }


def test_shares_lie_inside_of_a_combination(project):
    study = project({"03_c": {"threshold": [0.2, 0.3], "shard": 2}})
    names = [item.name for item in combinations(study)]
    assert names[:3] == [
        f"03_c@threshold=0.2{end}" for end in ("-1_of_2", "-2_of_2", "")
    ]
    whole = combinations(study)[2]
    assert set(whole.after) == {"02_b", *names[:2]} and whole.parameters["shard"] == ""


def test_a_changed_value_of_the_study_or_of_a_list_runs_again_what_has_it_alone(
    project,
):
    def changed(study):
        now = {item.name: set(item.depends) for item in study.executions}
        return [name for name in now if now[name] != before.get(name)]

    before = project({"03_c": SWEEP})
    before = {item.name: set(item.depends) for item in before.executions}
    more = {"03_c": SWEEP | {"threshold": [0.1, 0.7]}}
    assert changed(project(more)) == [
        f"03_c@threshold=0.7,method={method}" for method in ("a", ODD)
    ]
    # A swept parameter's own value is none of its combinations'.
    assert changed(project({"03_c": SWEEP}, threshold=0.9)) == [*STEMS]
    files = project.root / "files"
    files.mkdir()
    swept = {"03_c": {"data_path": [str(files), str(project.root / "notebooks")]}}
    before = {i.name: set(i.depends) for i in project(swept).executions}
    (files / "a").write_text("more")
    assert len(changed(project(swept))) == 1


@pytest.mark.parametrize(
    ("sweep", "told"),
    [
        ({"treshold": [1]}, "unknown name 'treshold' (did you mean 'threshold'?)"),
        ({"threshold": 0.1}, "threshold is 0.1, and must be a list of values"),
        ({"threshold": []}, "threshold is [], and must be a list of values"),
        ({"threshold": ["x"]}, "threshold is 'x', and must be float (of the map)"),
        ({"threshold": [1, 1.0, 2]}, "contains duplicates"),
        ({"names": ["a"]}, "names is 'a', and must be list[str]"),
        ({"jobs": [1]}, "jobs cannot be swept: it moves no result"),
        ({"study": ["a"]}, "study cannot be swept: it moves no result"),
        ({"through": ["04_d"]}, "through needs a parameter with its values"),
        ({"threshold": [1], "through": "04_d"}, "must be a list of notebooks"),
        (
            {"threshold": [1], "through": ["02_b"]},
            "'02_b', which is not a notebook of the study",
        ),
        ({"threshold": [1], "through": ["04_x"]}, "(did you mean '04_d'?)"),
        ({"threshold": [*range(2000)]}, "2,000 combinations, and 1,000 are possible"),
    ],
)
def test_what_is_wrong_with_a_sweep_is_told(project, sweep, told):
    (fault,) = faults(project, {"03_c": sweep})
    assert fault.startswith("sweep: 03_c") and told in fault


def test_as_many_combinations_as_are_possible_are_executed(project, monkeypatch):
    monkeypatch.setattr("helpers.sweep.combinations.MOST", 4)
    assert len(combinations(project({"03_c": SWEEP}))) == 4
    monkeypatch.setattr("helpers.sweep.combinations.MOST", 3)
    (fault,) = faults(project, {"03_c": SWEEP})
    assert fault == "sweep: 03_c has 4 combinations, and 3 are possible"


def test_what_is_trained_is_not_swept_and_the_sentence_says_how(project):
    (fault,) = faults(project, {"02_b": {"threshold": [0.1, 0.2]}})
    assert fault == (
        "sweep: 02_b: threshold decides what is trained, so each value would need "
        "other models: write a study file for each value"
    )
    (fault,) = faults(project, {"02_b": {"names": [["a"]]}})
    assert fault.endswith("write all levels into its own list below notebooks")
    with pytest.raises(StudyError, match="width decides what is trained"):
        load_study("demo", variations=["02_grid_training.width=0.125,0.25"])


def test_values_from_the_shell_are_those_of_the_file(project):
    def found(*variations):
        return [item.name for item in combinations(project({}, *variations))]

    both = found("03_c.threshold=0.1,0.2", "03_c.method=[a, b]", "03_c.through=04_d")
    assert len(both) == 8 and both[0] == "03_c@threshold=0.1,method=a"
    assert found("03_c.method='a,b', \"{x}\"") == [
        f"03_c@method={word}"
        for word in (f"~{json_digest('a,b')}", f"~{json_digest('{x}')}")
    ]
    names = found("03_c.names=[a],[a, b]")
    assert len(names) == 2  # a list of lists, since each value is one
    assert len(found("03_c.names=[a]")) == 1
    assert found("03_c.threshold=0.3") == ["03_c@threshold=0.3"]
    told = faults(
        project, {}, "c.threshold=1", "03_c.x=1", "03_c.method={", "threshold"
    )
    assert [fault.split(": ", 1)[1] for fault in told] == [
        "no such notebook; write notebook.name=value,value",
        "unknown name; write notebook.name=value,value",
        "the values are not readable YAML; put texts with other signs into quotes",
        "no such notebook; write notebook.name=value,value",
    ]
    study = project({"03_c": SWEEP}, "03_c.threshold=0.7")  # in place of the file's
    assert len(combinations(study)) == 2


def test_a_combination_whose_values_contradict_each_other_is_named():
    told = (
        r"sweep: 06_kappa_tradeoff/seen_classes=40: seen_classes is 40; the study has"
    )
    with pytest.raises(StudyError, match=told):
        load_study("demo", variations=["06_kappa_tradeoff.seen_classes=6,40"])


def test_a_failure_is_known_until_it_is_withdrawn(project):
    study = project({"03_c": {"threshold": [0.1, 0.2]}})
    names = [item.name for item in combinations(study)]
    for name, content in zip(names, ({"failed": "why"}, {}), strict=True):
        path = record_of(study.work, study.name, name)
        write_json(path, {"made": {}} | content)
    assert study.failed() == {names[0]: "why"}
    study.withdraw_changed()
    assert study.failed()  # it is a record like others while a sweep runs
    study.withdraw_failed()
    assert study.failed() == {}
    assert [path.stem for path in Path(study.work / "done/mine").iterdir()] == [
        names[1]
    ]
