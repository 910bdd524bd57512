"""Records: published values of a study's networks, without weights and pixels.

``reports/<study>/records`` has the folders of ``work/<study>``. Readers look in the
latter and then in the former, and records of two machines are merged by copying files:

- ``data.json``, ``images.npz``: labels, classes, boxes, split and fingerprint of all
  images;
- ``runs/<run>``: configuration, result and history of a run, with the digest of its
  weights;
- ``scores/<network>.parquet``, ``arrays/<network>.npz``: see ``values``; ``settings``
  has what decides their values.
"""

import shutil
from pathlib import Path

import numpy as np

from helpers.files import (
    LABELS,
    MANIFEST,
    complete_or_absent,
    read_json,
    write_json,
)
from helpers.scores.values import (
    SCORES,
    SETTINGS,
    add_values,
    keys_of,
    read_scores,
    read_values,
)

OF_RUN = ("config.json", "history.parquet", "result.json")  # the result comes last
# Parts that are not published: features of images and probes of the trade-off study,
# which no table needs.
LEFT_OUT = ("features", "probes")
# Maps are published of the first scored images, which are drawn at random: of 11,173
# images of 224 px all maps of a network take 485 kB, and these 65 kB. Values of single
# images, from which tables are made, are published of all.
IMAGES_WITH_MAPS = 1500


def publish(work: Path, folder: Path) -> None:
    """Publish the complete results in a study's folder of work as its records.

    A run that is still training is left out, and so are weights, pixels and logits, of
    which the predicted class is published. A file is written whole.

    Args:
        work: ``work/<study>``, with images chosen by notebook 01.
        folder: ``reports/<study>/records``.

    Raises:
        ValueError: where the records are of other images, or a file is damaged.
    """
    _publish_images(work, folder)
    for result in sorted(work.glob("runs/*/result.json")):
        for file in OF_RUN:
            _copy(result.with_name(file), folder / "runs" / result.parent.name / file)
    for path in sorted((work / SETTINGS).glob("*.json")):
        if not path.name.startswith(LEFT_OUT):
            _copy(path, folder / SETTINGS / path.name)
    for path in sorted((work / SCORES).glob("*.parquet")):
        _publish_values(work, folder, path.stem)


def _publish_images(work: Path, folder: Path) -> None:
    """Publish labels, boxes and split, without a path of this machine alone."""
    manifest = read_json(work / MANIFEST)
    if (folder / MANIFEST).is_file():
        other = read_json(folder / MANIFEST)["fingerprint"]
        if other != manifest["fingerprint"]:
            raise ValueError(
                f"{folder} has records of the images {other}, and {work} is of the "
                f"images {manifest['fingerprint']}; move one of the two away, or give "
                "this study another name"
            )
    _copy(work / LABELS, folder / LABELS)
    path = Path(manifest["parameters"].get("data_path") or "")
    if path.is_absolute() or ".." in path.parts:
        manifest["parameters"]["data_path"] = f"data/{path.name}"
    write_json(folder / MANIFEST, manifest)


def _publish_values(work: Path, folder: Path, model_id: str) -> None:
    scores = read_scores(work, model_id)
    scores = scores[~scores["part"].str.startswith(LEFT_OUT)]
    published = read_scores(folder, model_id)
    if len(scores.merge(published)) == len(scores):  # every row is published already
        return
    arrays = {}
    for key, values in read_values(work, model_id, {*keys_of(scores)}).items():
        part, name = key.rsplit("/", 1)
        if name == "logits":
            classes = values.argmax(1).astype(np.min_scalar_type(values.shape[1] - 1))
            arrays[f"{part}/predicted"] = classes
        else:
            count = IMAGES_WITH_MAPS if name.startswith("maps") else None
            arrays[key] = values[:count]
    add_values(folder, model_id, scores, arrays)


def _copy(source: Path, target: Path) -> None:
    if source.is_file():
        with complete_or_absent(target) as temporary:
            shutil.copyfile(source, temporary)
