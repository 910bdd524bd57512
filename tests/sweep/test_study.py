"""A study file becomes executions, or every fault that it has is told at once."""

import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml

from helpers.cams import masks
from helpers.files import PROJECT_ROOT, read_json, write_json
from helpers.kappa import probing
from helpers.parameters import StudyError, declared
from helpers.relations import RELATIONS, RULES, relation_faults
from helpers.sweep import cli, execute, plan
from helpers.sweep.imports import ProjectModules, notebooks_with
from helpers.sweep.order import notebooks_after
from helpers.sweep.study import (
    OF_OPENCV,
    CheckedStudy,
    Execution,
    asks_only_combinations,
    file_digest,
    from_records,
    further_faults,
    load_study,
    record_of,
)
from tests.sweep.conftest import write_notebook

ONE = 'threshold: float = 0.1  # of the map\ncount: int = 3  # how many\nnames: list[str] = ["a"]  # which\nshard: str = ""  # share'
TWO = 'other: int = 1  # else\ncount: int = 3  # how many\ndata_path: str = ""  # of files'
CLAIM = {"claim": "small", "measure": "iou", "question": "r_gap", "side": "below"}


@pytest.fixture
def project(tmp_path):
    """A folder with three notebooks; gives a function that writes a study file and loads it."""
    for name in ("notebooks", "params", "helpers/cams", "helpers/kappa"):
        (tmp_path / name).mkdir(parents=True)
    for stem, cell, source in (
        ("01_one", ONE, "%matplotlib inline\nfrom helpers.cams.draw import curve"),
        ("02_two", TWO, "from helpers.kappa.study import Study"),
        ("04_four", TWO, "4"),
    ):
        write_notebook(tmp_path / f"notebooks/{stem}.ipynb", cell, source)

    def load(content, *overrides, name="mine", variations=()):
        text = (
            content
            if isinstance(content, str)
            else yaml.safe_dump(content, sort_keys=False)
        )
        (tmp_path / f"params/{name}.yaml").write_text(text)
        return load_study(name, overrides, tmp_path, variations)

    load.root = tmp_path
    return load


def faults(project, content, *overrides):
    with pytest.raises(StudyError) as caught:
        project(content, *overrides)
    return "\n".join(caught.value.faults)


EACH = {"01_one": {}, "02_two": {}, "04_four": {}}


def test_every_declared_parameter_has_a_value_and_what_is_nearer_wins(project):
    study = project(
        {
            "common": {"count": 5, "threshold": 1},
            "notebooks": {"02_two": {"count": 6}, "01_one": None},
        },
        "02_two.other=4",
    )
    first, second = study.executions
    places = {"study": "mine", "work_dir": "work", "reports_dir": "reports"}
    assert first.parameters == places | {
        "threshold": 1.0,
        "count": 5,
        "names": ["a"],
        "shard": "",
    }
    assert second.parameters == places | {"other": 4, "count": 6, "data_path": ""}
    assert (second.name, first.after, second.after) == ("02_two", (), ("01_one",))
    assert (study.work, study.reports) == (
        project.root / "work/mine",
        project.root / "reports/mine",
    )
    assert project({"notebooks": EACH}).executions[2].after == ("02_two",)
    assert project({"notebooks": {"01_one": {}, "04_four": {}}}).executions[
        1
    ].after == ("01_one",)  # the nearest before the one it reads
    demo = load_study("demo").executions
    assert [item.notebook[:2] for item in demo] == [
        "01",
        "02",
        "03",
        "04",
        "08",
        "05",
        "06",
        "07",
        "09",
        "10",
        "11",
    ] and demo[4].after == ("04_baselines",)
    assert [item.after for item in demo[-2:]] == [
        ("04_baselines",),
        ("02_grid_training",),
    ]


def test_the_question_and_subject_of_a_study_are_texts(project):
    content = {"notebooks": EACH, "question": "Why?", "subject": "Mice."}
    assert project(content).name == "mine"
    assert faults(project, content | {"question": ["Why?"]}).endswith(
        "question is ['Why?'], and must be text"
    )


def test_all_faults_are_told_at_once_with_the_nearest_names(project):
    content = {
        "common": {"cuont": 1},
        "notebooks": {"01_one": {"treshold": 2, "count": "many"}, "03_three": {}},
        "sweeps": 1,
    }
    text = faults(
        project,
        content | {"claims": [{"claim": 1}]},
        "cuont=1",
        "03_x.count=1",
        "count",
        "02_two.count=[",
    )
    for part in (
        *(
            "common: unknown name 'cuont' (did you mean 'count'?)",
            "01_one: unknown name 'treshold' (did you mean 'threshold'?)",
        ),
        *(
            "notebooks: unknown name '03_three'; valid: 01_one, 02_two, 04_four",
            "unknown name 'sweeps' (did you mean 'sweep'?)",
        ),
        *(
            "mine.yaml: count is 'many', and must be int (how many)",
            "claim 1 has claim; every claim needs",
            "--set cuont=1: unknown name",
        ),
        *("--set 03_x.count=1", "--set count: unknown name"),
    ):
        assert part in text, part
    assert (
        faults(project, {"notebooks": EACH}, "count=[")
        == "--set count=[: the value is not readable YAML"
    )
    assert "names none to run, of 01_one, 02_two, 04_four" in faults(
        project, {"common": {}}
    )
    assert faults(project, {"notebooks": EACH, "common": {"count": -1}}).endswith(
        "mine.yaml: count is -1, and -1 is not in [0, 1000000000] (how many)"
    )
    assert "study is 'a', and must be 'mine', as its file" in faults(
        project, {"notebooks": EACH}, "study=a"
    )


@pytest.mark.parametrize(
    ("claims", "primary", "told"),
    [
        (
            [CLAIM | {"measure": "iou_c"}],
            ["iou"],
            "claim 'small': unknown measure 'iou_c' (did you mean 'iou",
        ),
        ([], ["iuo"], "primary_measures: unknown measure 'iuo' (did you mean 'iou'"),
        (
            [],
            ["iou", "iou"],
            "the primary analysis has 2 measures, 1 of them different",
        ),
        (
            [CLAIM | {"question": "r_gap_within_kinds"}],
            ["iou_b"],
            "r_gap_within_kinds of iou, which is not in primary_measures (iou_b)",
        ),
    ],
)
def test_measures_that_cannot_be_judged_are_told_at_the_start(
    tmp_path, claims, primary, told
):
    study = CheckedStudy(
        "x",
        tmp_path,
        "x",
        claims,
        {"study": "x", "primary_measures": primary},
        [Execution("04_baselines", {"study": "x", "primary_measures": primary})],
    )
    (fault,) = further_faults(study)
    assert told in fault
    assert (
        further_faults(
            replace(
                study,
                claims=[CLAIM],
                values={"study": "x"},
                executions=[replace(study.executions[0], parameters={"study": "x"})],
            )
        )
        == []
    )


def test_other_studies_and_makers_of_masks_that_are_not_there_are_known_at_the_start(
    tmp_path, monkeypatch
):
    (tmp_path / "reports/filled20/tables").mkdir(parents=True)
    (tmp_path / "reports/filled20/tables/scores.parquet").touch()
    asked = {
        "other_studies": ["x", "filled20", "filed20"],
        "saliency_providers": ["spectral_residual", "grab_cut"],
    }
    study = CheckedStudy("x", tmp_path, "x", [], asked, [Execution("05", asked)])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    of_study, of_masks = further_faults(study)
    assert of_study.startswith("other_studies names 'filed20'")
    assert "did you mean 'filled20'" in of_study
    assert of_masks.startswith("saliency_providers grab_cut need OpenCV")
    assert set(OF_OPENCV) == {*masks.MASK_PROVIDERS} - {"spectral_residual", "folder"}


def test_equal_shares_come_before_the_whole(project):
    found = project({"notebooks": EACH, "sweep": {"01_one": {"shard": 3}}}).executions
    assert [item.parameters["shard"] for item in found[:3]] == ["1/3", "2/3", "3/3"]
    assert [item.name for item in found] == [
        *(f"01_one-{number}_of_3" for number in (1, 2, 3)),
        "01_one",
        "02_two",
        "04_four",
    ]
    assert set(found[3].after) == {item.name for item in found[:3]} and found[
        4
    ].after == ("01_one",)
    assert len({item.depends for item in found}) == 6


@pytest.mark.parametrize(
    "block",
    [
        {"shard": 0},
        {"shard": True},
        {"shard": [1]},
    ],
)
def test_faults_of_a_sweep_are_told(project, block):
    assert "write shard: N for N equal shares" in faults(
        project, {"notebooks": EACH, "sweep": {"01_one": block}}
    )
    assert "write shard: N" in faults(
        project, {"notebooks": EACH, "sweep": {"02_two": {"shard": 2}}}
    )  # which declares none


def test_what_makes_a_notebook_run_again_is_what_it_declares_reads_and_imports(project):
    def changed(*names):
        before, study = (
            {item.name: item.depends for item in before_all},
            project(content),
        )
        return {
            item.name: sorted(set(item.depends) - set(before[item.name]))
            for item in study.executions
            if item.depends != before[item.name]
        }

    root, content = project.root, {"notebooks": dict(EACH), "claims": [CLAIM]}
    sources = {
        "__init__.py": "",
        "cams/draw.py": "def curve():\n    from helpers.cams import boxes",
        "cams/boxes.py": "",
        "cams/boxes/published.csv": "1",
        "cams/unread.py": "from helpers.cams import boxes",
        "kappa/study.py": "import helpers.cams.boxes as b",
    }
    for name, source in sources.items():
        (root / "helpers" / name).parent.mkdir(exist_ok=True)
        (root / "helpers" / name).write_text(source)
    (root / "images.zip").write_bytes(b"1" * 100)
    content["notebooks"]["02_two"] = {"data_path": "images.zip"}
    before_all = project(content).executions
    assert changed() == {}
    (root / "helpers/cams/boxes.py").touch()
    (root / "images.zip").touch()
    assert changed() == {}
    content["notebooks"]["01_one"] = {"threshold": 0.2}
    assert changed() == {"01_one": ["threshold = 0.2"]}
    content["notebooks"]["01_one"] = {}
    content["claims"] = [CLAIM | {"side": "above"}]
    assert list(changed()) == ["04_four"]  # which judges
    content["claims"] = [CLAIM]
    (root / "images.zip").write_bytes(b"2" * 100)
    assert list(changed()) == ["02_two"]
    (root / "images.zip").write_bytes(b"1" * 100)
    # Each module with the notebooks that import it, transitively or when asked for a name.
    behind = {
        "cams/draw.py": ["01_one"],
        "cams/boxes.py": ["01_one", "02_two"],
        "cams/boxes/published.csv": ["01_one", "02_two"],
        "cams/unread.py": [],
        "kappa/study.py": ["02_two"],
    }
    for name, notebooks in behind.items():
        path = root / "helpers" / name
        path.write_text(f"{sources[name]}\n# a line\n")
        assert list(changed()) == notebooks, name
        path.write_text(sources[name])


def test_a_line_in_a_module_of_pictures_runs_the_notebooks_that_show_them():
    behind = {}
    modules = ProjectModules(PROJECT_ROOT)
    for notebook in sorted((PROJECT_ROOT / "notebooks").glob("*.ipynb")):
        cells = read_json(notebook)["cells"]
        code = [
            "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"
        ]
        for path in modules.behind(code):
            name = str(path.relative_to(PROJECT_ROOT / "helpers"))
            behind.setdefault(name, []).append(notebook.stem[:2])
    assert behind["report/looking.py"] == ["09"]
    looking = PROJECT_ROOT / "helpers/report/looking.py"
    assert notebooks_with(looking) == ["09_looking_experiment"]
    assert behind["kappa/tables.py"] == ["06"]
    assert behind["ablations/report.py"] == ["05"]
    assert behind["report/cams.py"] == ["03", "05", "09"]
    assert len(behind["report/notebook.py"]) == len(behind["files.py"]) >= 9
    assert "report/pages.py" not in behind  # which no notebook shows
    assert any(name.startswith("statistics/published/") for name in behind)


def test_a_study_that_extends_another_shares_its_work_and_changes_nothing_that_is_trained(
    project,
):
    project({"notebooks": EACH, "claims": [CLAIM]})
    further = project(
        {
            "extends": "mine",
            "common": {"count": 3},
            "notebooks": {"04_four": {"other": 9}},
        },
        name="further",
    )
    assert (further.work.name, further.reports.name, further.claims) == (
        "mine",
        "further",
        [CLAIM],
    )
    assert [item.parameters["study"] for item in further.executions] == ["further"] * 3
    with pytest.raises(
        StudyError,
        match=r"other is 9, and mine, whose images and runs it shares, has 1",
    ):
        project(
            {"extends": "mine", "notebooks": {"02_two": {"other": 9}}}, name="further"
        )


def test_a_study_may_run_some_notebooks_of_another_one(project):
    project({"notebooks": EACH, "claims": [CLAIM]})
    content = {"extends": "mine", "common": {"other": 1}, "run": ["04_four"]}
    further = project(content, name="further")
    assert [item.name for item in further.executions] == ["04_four"]
    assert further.executions[0].after == () and further.work.name == "mine"
    for run, told in (
        (["03_x"], "run: unknown name '03_x'"),
        ("04_four", "run is '04_four', and must be a list"),
        ([], "run is [], and must be a list"),
    ):
        with pytest.raises(StudyError, match=re.escape(told)):
            project(content | {"run": run}, name="further")
    with pytest.raises(StudyError, match="add extends"):
        project({"notebooks": EACH, "run": ["04_four"]})


def test_a_record_is_withdrawn_when_what_it_made_is_gone_or_changed(project):
    study = project({"notebooks": EACH})
    made, records = study.work / "data.json", study.work / "done/mine"
    made.parent.mkdir(parents=True)
    for number, content in enumerate(
        ('{"made": {"data.json": "?"}}', '{"made": 1}', "[", "")
    ):
        made.write_text("1")
        (study.work / "kept.json").write_text("kept")
        write_json(
            records / "01_one.json",
            {
                "made": {
                    file: file_digest(study.work / file)
                    for file in ("kept.json", "data.json")
                }
            },
        )
        (records / f"{number}.json").write_text(content)
        study.withdraw_changed()
        assert [path.name for path in records.iterdir()] == ["01_one.json"]
        made.write_text("2") if number % 2 else made.unlink()
        study.withdraw_changed()
        assert list(records.iterdir()) == []


def test_files_that_are_not_on_this_machine_are_told(project):
    study = project({"notebooks": EACH}, "data_path=nowhere.zip")
    assert further_faults(study) == [
        "data_path is 'nowhere.zip', and nothing is there; give its place by --set data_path=..."
    ]


def test_a_published_study_without_its_images_runs_what_its_records_can(project):
    for stem, cell in (("01_one", TWO), ("04_four", TWO)):
        write_notebook(project.root / f"notebooks/{stem}.ipynb", cell, stem)
    study = project({"notebooks": EACH}, "data_path=nowhere.zip")
    assert from_records(study) is study  # nothing is published
    (project.root / "reports/mine/records").mkdir(parents=True)
    write_json(project.root / "reports/mine/records/data.json", {})
    alone = from_records(study)
    assert [(item.name, item.after) for item in alone.executions] == [("04_four", ())]
    assert [item.name for item in alone.as_published] == ["01_one", "02_two"]
    # The pages still list all notebooks.
    assert [*json.loads(alone.job())["parameters"]] == ["01_one", "02_two", "04_four"]
    (project.root / "nowhere.zip").touch()
    assert from_records(study) is study


def test_after_a_notebook_come_those_that_read_its_results_also_through_others():
    stems = ["01_a", "02_b", "03_c", "04_d", "07_g", "08_h", "10_j"]
    assert notebooks_after(["04_d"], stems) == ["08_h", "07_g", "10_j"]
    assert notebooks_after(["03_c", "08_h"], stems) == ["07_g"]
    assert notebooks_after(["01_a"], ["01_a", "04_d"]) == ["04_d"]
    assert notebooks_after([], stems) == []


def test_where_notebooks_differ_the_value_of_a_study_is_the_later_one(project):
    for stem in ("01_one", "04_four"):
        write_notebook(project.root / f"notebooks/{stem}.ipynb", TWO, stem)
    blocks = EACH | {"01_one": {"other": 1}, "04_four": {"other": 2}}
    assert project({"notebooks": blocks}).values["other"] == 2


def test_varied_values_of_a_published_study_run_alone(project):
    for stem, cell in (("01_one", TWO), ("04_four", TWO)):
        write_notebook(project.root / f"notebooks/{stem}.ipynb", cell, stem)
    values = ["04_four.other=1,2"]
    study = project({"notebooks": EACH}, "data_path=nowhere.zip", variations=values)
    reports = project.root / "reports/mine"
    (reports / "records").mkdir(parents=True)
    write_json(reports / "records/data.json", {})
    write_notebook(reports / "01_one.ipynb", TWO, "01_one")
    assert asks_only_combinations(values, [], study)
    alone = from_records(study, only_varied=True)
    assert [item.name for item in alone.executions] == [
        "04_four@other=1",
        "04_four@other=2",
    ]
    assert [item.after for item in alone.executions] == [(), ()]
    assert (alone.work, alone.values) == (study.work, study.values)
    assert [item.name for item in alone.as_published] == ["01_one"]
    assert cli._without_images(alone).startswith(
        "nowhere.zip is not here, so the notebooks of the study's own report stand as "
        "they were published, and only the combinations of 04_four run, from the "
        "records of mine;"
    )
    # What is set otherwise, or has run here, is asked for as a whole.
    assert not asks_only_combinations([], [], study)
    assert not asks_only_combinations(values, ["count=2"], study)
    record = record_of(study.work, study.name, "04_four@other=1")
    record.parent.mkdir(parents=True)
    write_json(record, {})
    assert asks_only_combinations(values, [], study)
    write_json(record_of(study.work, study.name, "04_four"), {})
    assert not asks_only_combinations(values, [], study)


NOTEBOOKS = {
    path.stem: declared(path)
    for path in sorted((PROJECT_ROOT / "notebooks").glob("*.ipynb"))
}
LEVELS = {name: item.default for name, item in NOTEBOOKS["02_grid_training"].items()}
DEMO = {
    "data_source": "synthetic",
    "data_path": "",
    "class_ids": ["synthetic_disc", "synthetic_cross"],
}
MADE = {
    "pretrained_weights": "made",
    "pretrained_levels": [True],
    "pretrain_data_source": "synthetic",
    "pretrain_data_path": "",
    "pretrain_class_ids": [],
}
UNSEEN = {
    "seen_classes": 0,
    "kappa_families": ["model set"],
    "unseen_class_ids": [],
    "unseen_fractions": [0.0],
    "unseen_path": "",
}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            DEMO | {"data_source": "ilsvrc", "class_ids": []},
            "data_path is empty, and data_source ilsvrc needs",
        ),
        (
            DEMO | {"class_ids": ["synthetic_disc"]},
            "a classifier needs at least 2 classes",
        ),
        (
            {"images_per_class": 25, "training_sizes": [25, 100]},
            "training_sizes is [25, 100], and images_per_class allows 25",
        ),
        (
            DEMO | MADE,
            "pretrain_class_ids shares synthetic_cross, synthetic_disc with class_ids",
        ),
        (DEMO | MADE | {"class_ids": []}, "pretrain_class_ids shares"),
        (
            DEMO | MADE | {"pretrain_data_source": "voc"},
            "pretrain_data_path is empty",
        ),
        (
            {
                "pretrained_weights": "IMAGENET1K_V1",
                "pretrained_levels": [True],
                "stem": "small",
                "width": 1,
            },
            "fit stem imagenet and width 1, not small and 1",
        ),
        (
            DEMO | UNSEEN | {"unseen_class_ids": ["synthetic_disc"]},
            "unseen_class_ids shares synthetic_disc with class_ids",
        ),
        (
            DEMO | UNSEEN | {"seen_classes": 3},
            "seen_classes is 3; the study has 2 classes",
        ),
        (
            DEMO | UNSEEN | {"seen_classes": 1},
            "and the model set was trained on all of them",
        ),
        (
            DEMO | UNSEEN | {"kappa_families": [], "seen_classes": 1},
            "seen_classes is 1, and a classifier needs at least 2",
        ),
        (
            DEMO
            | UNSEEN
            | {"unseen_class_ids": ["a"], "unseen_fractions": [0.0, 0.333, 0.3334]},
            "unseen_fractions has 0.333 and 0.3334, which are one step",
        ),
        (
            DEMO | MADE | {"pretrain_class_ids": ["synthetic_ring"]},
            "pretrain_class_ids is ['synthetic_ring'], and a classifier needs",
        ),
        ({"shard": "5/4"}, "shard is 5/4; write i/n"),
        ({"work_dir": "a/../b", "reports_dir": "b/"}, "are both a/../b"),
        (
            {"noise_generator": "autoencoder", "image_size": 30},
            "multiples of 4, and image_size is 30",
        ),
        ({"noise_ssim": [0.9, 1.0, 0.91]}, "levels are met to 0.01"),
        (
            {
                "saliency_providers": ["folder"],
                "saliency_path": "",
                "checkpoints_path": "",
            },
            "saliency_path is empty",
        ),
        (
            {"checkpoints_path": "mine", "images_path": ""},
            "images_path is empty, and the networks of checkpoints_path need it",
        ),
        (
            {"scored_images": 2, "class_ids": ["a", "b", "c"]},
            "scored_images is 2, and class_ids has more classes",
        ),
        (
            LEVELS | {"blocks": [{"learning_rat": [1]}]},
            "block 1, learning_rat: no such axis (did you mean 'learning_rate'",
        ),
        (
            LEVELS | {"blocks": [{}, {"repeat": 1}]},
            "block 2, repeat: repeat is 1, and must be list[int]",
        ),
        (
            LEVELS | {"blocks": [{"architecture": ["vgg"]}]},
            "'vgg' is not one of ('resnet18'",
        ),
        (LEVELS | {"blocks": [{"batch_size": [8.5]}]}, "must be list[int]"),
        ({"learning_rates": [0.01, 0.0]}, "at rate 0 a network learns nothing"),
    ],
)
def test_values_that_do_not_go_together_are_told(values, message):
    (found,) = relation_faults(values)
    assert message in found


def test_what_goes_together_passes_and_what_is_not_declared_is_passed_over():
    for values in (
        {},
        DEMO | MADE | {"pretrain_class_ids": ["synthetic_ring", "synthetic_star"]},
        DEMO | MADE | {"pretrained_levels": [False]},
        {"shard": "4/4", "noise_ssim": [0.98, 1.0]},
        {"noise_generator": "autoencoder", "image_size": 32},
        {
            "pretrained_weights": "IMAGENET1K_V1",
            "pretrained_levels": [False],
            "stem": "small",
            "width": 0.25,
        },
        DEMO | UNSEEN,
    ):
        assert relation_faults(values) == []
    blocks = [{"repeat": [0, 1], "learning_rate": [0, 0.1]}]
    assert relation_faults(LEVELS | {"blocks": blocks}) == []


def test_rules_name_parameters_that_notebooks_declare():
    declared_names = set().union(*NOTEBOOKS.values())
    for rule in (*RELATIONS, *RULES):
        assert set(rule.names) <= declared_names


def test_steps_of_unseen_classes_need_one_without():
    given = DEMO | UNSEEN | {"unseen_fractions": [0.333]}
    fault, *_ = relation_faults(given)
    assert fault.startswith("unseen_fractions is [0.333], and needs 0")


def test_the_steps_of_unseen_classes_that_can_be_had_are_those_of_the_probe():
    given = DEMO | UNSEEN | {"unseen_class_ids": ["synthetic_ring", "synthetic_star"]}
    assert relation_faults(given | {"unseen_fractions": [0.0, 0.333, 0.5]}) == []
    (found,) = relation_faults(given | {"unseen_fractions": [0.0, 0.4]})
    with pytest.raises(ValueError, match="can have") as caught:
        every = [*given["class_ids"], *given["unseen_class_ids"]]
        probing.class_steps(
            SimpleNamespace(classes=pd.DataFrame({"class_id": every})), every, 2, [0.4]
        )
    assert (
        found.partition("possible are ")[2]
        == str(caught.value).partition("can have ")[2]
    )


ODD = [
    -1,
    0,
    1,
    7,
    0.5,
    1e9,
    10**30,
    float("nan"),
    float("inf"),
    "",
    "x",
    "a\0b",
    "x" * 5000,
    "1/2",
    True,
    None,
]
ODD += [
    [],
    ["x"],
    [0],
    [1, 1],
    [[]],
    {},
    {"a": 1},
    [{}],
    [{"repeat": [1]}],
    "synthetic_disc",
    ["synthetic_disc"],
]


@pytest.mark.parametrize("seed", range(60))
def test_a_study_with_an_odd_value_is_refused_by_its_name_or_taken_by_the_modules(
    seed, tmp_path
):
    draw, study = (
        random.Random(seed),
        yaml.safe_load((PROJECT_ROOT / "params/demo.yaml").read_text()),
    )
    stem = draw.choice(list(study["notebooks"]))
    name = draw.choice(list(NOTEBOOKS[stem]))
    place = draw.choice(
        [
            study["notebooks"][stem],
            study["notebooks"][stem],
            study["common"],
            study.setdefault("sweep", {}).setdefault(stem, {}),
        ]
    )
    place[name] = draw.choice(ODD)
    (tmp_path / "demo.yaml").write_text(yaml.dump(study, allow_unicode=True))
    try:
        values = load_study(tmp_path / "demo.yaml").values
    except StudyError as found:
        assert any(name in fault for fault in found.faults), found.faults
        assert all(len(fault) < 1500 for fault in found.faults)
        return
    json.dumps(values, allow_nan=False)
    if len(values["learning_rates"]) < 50:
        plan.planned_runs(values)


def test_a_notebook_that_is_split_into_shares_marks_where_it_sums_up():
    for stem, names in NOTEBOOKS.items():
        cells = read_json(PROJECT_ROOT / f"notebooks/{stem}.ipynb")["cells"]
        closing = [
            index
            for index, cell in enumerate(cells)
            if execute.CLOSING in cell["metadata"].get("tags", [])
        ]
        uses = [
            index
            for index, cell in enumerate(cells)
            if cell["cell_type"] == "code"
            and re.search(r"(train_missing|select_shard)\(", "".join(cell["source"]))
        ]
        assert ("shard" in names) == bool(closing) and all(
            index < closing[0] for index in uses
        ), stem


def test_a_misspelt_study_is_told_without_loading_anything_heavy():
    script = "import sys; from helpers.sweep.cli import main; print(main(['demo', '--set', 'cam_treshold=1']),"
    script += (
        "sorted({'torch', 'papermill', 'pandas', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "2 []"
    assert "(did you mean 'cam_threshold' or" in done.stderr
