"""A study file for a folder of images, and what a study would cost."""

import shutil

import pytest

from helpers import new, plan
from helpers.files import PROJECT_ROOT
from helpers.parameters import StudyError
from helpers.studies import load
from tests.conftest import jpeg


@pytest.fixture
def root(tmp_path):
    """A project with the demo's file and notebooks, and nothing else."""
    for name in ("notebooks", "params"):
        shutil.copytree(PROJECT_ROOT / name, tmp_path / name)
    return tmp_path


def photographs(folder, **counts):
    for number, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for image in range(count):
            content = jpeg(1000 * number + image, (60, 50))
            (folder / name / f"{image}.jpg").write_bytes(content)
    return folder


def test_a_folder_of_classes_becomes_a_study(root, tmp_path):
    path = photographs(tmp_path / "birds", wren=30, robin=20, finch=25)
    assert new.write("birds", path, root) == root / "params/birds.yaml"
    values = load("birds", root=root).executions[0].parameters
    assert values["class_ids"] == ["finch", "robin", "wren"]
    assert values["data_source"] == "class_folders"
    # four fifths of the smallest class: the rest is for test
    assert (values["image_size"], values["images_per_class"]) == (48, 16)
    with pytest.raises(StudyError, match="is there already"):
        new.write("birds", path, root)
    table = ["path,label,x0,y0,x1,y1", "wren/0.jpg,wren,9,9,30,30"]  # one has a box
    table += [f"robin/{image}.jpg,robin,,,," for image in range(20)]
    (path / "boxes.csv").write_text("\n".join(table))
    with pytest.raises(StudyError, match="0 of 1 classes with 18 images for"):
        new.write("boxed", path, root)


def test_one_class_makes_no_study(root, tmp_path):
    path = photographs(tmp_path / "few", wren=30, robin=17)
    with pytest.raises(ValueError, match="1 of 2 classes with 18 images"):
        new.write("one", path, root)
    for name in ("", ".x", "a/b", "x.yaml"):
        with pytest.raises(StudyError, match="cannot name a study"):
            new.write(name, path, root)
    for image in path.rglob("*.jpg"):
        image.write_bytes(b"")
    with pytest.raises(StudyError, match="none of 47 images"):
        new.write("one", path, root)
    assert not (root / "params/one.yaml").exists()


def test_a_plan_has_the_runs_of_the_study_and_times_each_network(capsys, monkeypatch):
    monkeypatch.setattr(plan, "_SECONDS", 0.01)
    plan.main("demo")
    lines = capsys.readouterr().out.splitlines()
    assert sum("images/s" in line for line in lines) == 2 * 2  # networks and batches
    assert "12 runs of at most 16 epochs" in lines[-1]
