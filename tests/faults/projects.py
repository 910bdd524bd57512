"""Small projects for the scripts beside this one: trivial notebooks, and a study of 24 runs over the real ones."""

import shutil
from pathlib import Path

import nbformat
import yaml

ROOT = Path(__file__).resolve().parents[2]


def trivial(folder: Path, parts: int, source: str = "pass") -> Path:
    """Write a project whose one notebook is split into parts; give its study file."""
    for name in ("notebooks", "helpers", "params"):
        (folder / name).mkdir(parents=True)
    declared = 'study: str = "x"  # name of the study\nnumber: int = 0  # which part\nreports_dir: str = "reports"  # where reports go'
    cells = [nbformat.v4.new_markdown_cell("# 01 Trivial"), nbformat.v4.new_code_cell(declared, metadata={"tags": ["parameters"]})]
    cells.append(nbformat.v4.new_code_cell(source))
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), folder / "notebooks/01_trivial.ipynb")
    study = {"notebooks": {"01_trivial": {}}, "sweep": {"01_trivial": {"number": list(range(parts))}}}
    path = folder / "params/many.yaml"
    path.write_text(yaml.safe_dump(study))
    return path


def study_of_24_runs(folder: Path) -> Path:
    """Write a study of 24 tiny runs over the notebooks 01 to 03, trained in four parts and scored in two; give its file."""
    grid = {
        "architectures": ["resnet18", "resnet34"],
        "batch_sizes": [8, 12],
        "learning_rates": [0.01, 0.003],
        "optimizers": ["adam"],
        "weight_decays": [0.0, 0.0005, 0.001],
        "augmentations": [False],
        "pretrained_levels": [False],
        "run_count": 0,
        "stem": "strided",
        "max_epochs": 2,
        "device": "cpu",
        "jobs": 1,
    }
    common = {"class_ids": ["synthetic_disc", "synthetic_cross", "synthetic_bars"], "image_size": 16, "images_per_class": 14}
    common |= {"test_images_per_class": 4, "minimum_train_accuracy": 0.0}
    scoring = {"bootstrap_resamples": 20, "accuracy_thresholds": [0.0], "device": "cpu"}
    notebooks = {"01_data_subset": {}, "02_grid_training": grid, "03_cam_scoring": scoring}
    sweep = {"02_grid_training": {"architectures": ["resnet18", "resnet34"], "shard": 2}, "03_cam_scoring": {"shard": 2}}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "killed.yaml"
    path.write_text(yaml.safe_dump({"common": common, "notebooks": notebooks, "sweep": sweep}))
    return path


def emptied(folder: Path) -> Path:
    """Give an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
