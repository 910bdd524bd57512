"""Records: published values of a study's networks, without weights and pixels.

``reports/<study>/records`` has the folders of ``work/<study>``. Readers look in the
latter and then in the former, and records of two machines are merged by copying files:

- ``data.json``, ``images.npz``: labels, classes, boxes, split and fingerprint of all
  images;
- ``runs/<run>``: configuration, result and history of a run, with the digest of its
  weights;
- ``scores/<network>.parquet``, ``arrays/<network>.npz``: see ``store``; ``settings``
  has what decides their values.
"""

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helpers.files import (
    LABELS,
    MANIFEST,
    PROJECT_ROOT,
    RECORDS,
    DamagedFileError,
    complete_or_absent,
    file_digest,
    inside,
    is_scored,
    read_json,
    write_json,
)
from helpers.scores.store import (
    SCORES,
    SETTINGS,
    Values,
    read_values,
    write_values,
)

OF_RUN = ("config.json", "history.parquet", "result.json")  # the result comes last
# Parts that are not published: features of images and probes of the trade-off study,
# which no table needs.
LEFT_OUT = ("features", "probes")
# Maps are published of the first scored images, which are drawn at random: of 11,173
# images of 224 px all maps of a network take 485 kB, and these 65 kB. Values of single
# images, from which tables are made, are published of all.
IMAGES_WITH_MAPS = 1500


@dataclass
class Published:
    """Records after ``publish``, and what it wrote and refused."""

    folder: Path
    runs: set[str] = field(default_factory=set)  # ids that have records now
    models: set[str] = field(default_factory=set)  # ids with scores
    written: list[Path] = field(default_factory=list)  # files that are new or changed
    refused: list[str] = field(default_factory=list)  # sentences

    def __str__(self) -> str:
        """Sentence on the numbers of runs, models and files."""
        return (
            f"{self.folder}: {len(self.runs)} runs, {len(self.models)} networks "
            f"scored; {len(self.written)} files are new or changed"
        )


def publish(work: Path, folder: Path) -> Published:
    """Publish the complete results in a study's folder of work as its records.

    A run that is still training is left out, and so are weights, pixels and logits; of
    logits the predicted class and its probability are published. A file is written
    whole, and only where its values changed.

    Args:
        work: ``work/<study>``, with images chosen by notebook 01.
        folder: ``reports/<study>/records``.

    Returns:
        Runs and models with records, and a sentence for each file that was refused.

    Raises:
        FileNotFoundError: where notebook 01 has not run.
        ValueError: where the records are of other images.
    """
    published = Published(folder)
    _publish_images(work, published)
    for result in sorted(work.glob("runs/*/result.json")):
        try:
            _publish_run(result.parent, published)
        except ValueError as fault:  # a damaged file, which costs its run alone
            published.refused.append(str(fault))
    for path in sorted((work / SETTINGS).glob("*.json")):
        if not path.name.startswith(LEFT_OUT):
            _copy(path, folder / SETTINGS / path.name, published)
    for path in sorted((work / SCORES).glob("*.parquet")):
        run = path.stem.rpartition("@")[0]  # "" for what belongs to no run
        if run in published.runs or not run:
            _publish_values(work, path.stem, published)
    return published


def _publish_images(work: Path, published: Published) -> None:
    if not (work / MANIFEST).is_file():
        raise FileNotFoundError(
            f"{work / MANIFEST} is not there, so nothing of this study can be "
            f"published; run notebooks/01_data_subset.ipynb for it, or `make sweep "
            f"STUDY={work.name}`"
        )
    manifest = read_json(work / MANIFEST)
    target = published.folder / MANIFEST
    other = read_json(target)["fingerprint"] if target.is_file() else ""
    if other not in ("", manifest["fingerprint"]):
        raise ValueError(
            f"{published.folder} has records of the images {other}, and {work} is of "
            f"the images {manifest['fingerprint']}; move one of the two away, or give "
            "this study another name"
        )
    if (work / LABELS).is_file():
        _copy(work / LABELS, published.folder / LABELS, published)
    # Without a path of this machine alone.
    parameters = dict(manifest["parameters"])
    path = Path(parameters.get("data_path") or "")
    if path.is_absolute() or ".." in path.parts:
        parameters["data_path"] = f"data/{path.name}"
    manifest = dict(manifest) | {"parameters": parameters}
    if not target.is_file() or read_json(target) != manifest:
        write_json(target, manifest)
        published.written.append(target)


def _publish_run(source: Path, published: Published) -> None:
    name = source.name
    target = inside(published.folder / "runs", name)
    result = read_json(source / "result.json")
    if (target / "result.json").is_file():
        before = read_json(target / "result.json")
        if before != result and is_scored(published.folder, name):
            published.refused.append(
                f"the run {name} has another result in {target} (trained on "
                f"{before.get('device')}) than in {source} (trained on "
                f"{result['device']}); delete one of the two folders"
            )
            return
        if before != result:  # it was lost before it was scored, and trained again
            (target / "result.json").unlink()
    for file in OF_RUN:
        if (source / file).is_file():
            _copy(source / file, target / file, published)
    published.runs.add(name)


def _publish_values(work: Path, model_id: str, published: Published) -> None:
    try:
        values = read_values(work, model_id)
    except DamagedFileError as fault:
        published.refused.append(str(fault))
        return
    run, _, snapshot = model_id.rpartition("@")
    expected = _weights(published.folder / "runs" / run, snapshot) if run else ""
    if expected and not values.scores["weights"].isin(["", expected]).all():
        published.refused.append(
            f"scores of {model_id} in {work} are of other weights than the run has; "
            "run the notebook again, which makes them anew"
        )
        return
    published.models.add(model_id)
    is_left_out = values.scores["part"].str.startswith(LEFT_OUT)
    values = values.of(set(values.key[~is_left_out]))
    values.arrays = _arrays_to_publish(values.arrays)
    before = read_values(published.folder, model_id)
    values = before.updated(values)
    if not _are_equal(values, before):
        write_values(published.folder, model_id, values)
        published.written.append(published.folder / SCORES / f"{model_id}.parquet")


def _weights(run: Path, snapshot: str) -> str:
    """Digest of the weights of a snapshot of a published run; "" where unknown."""
    snapshots = read_json(run / "result.json")["snapshots"]
    digests = {item["snapshot"]: item.get("digest", "") for item in snapshots}
    return digests.get(snapshot, "")


def _arrays_to_publish(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Arrays of a network without large ones."""
    kept: dict[str, NDArray[Any]] = {}
    for key, values in arrays.items():
        place, _, name = key.rpartition("/")
        if name == "logits":
            for part, predictions in predictions_of_logits(values).items():
                kept[f"{place}/{part}"] = predictions
        else:
            kept[key] = values[:IMAGES_WITH_MAPS] if name == "maps" else values
    return kept


def _are_equal(one: Values, other: Values) -> bool:
    """Whether two networks' values are the same; NaN equals NaN."""
    if not one.scores.equals(other.scores) or one.arrays.keys() != other.arrays.keys():
        return False
    return all(
        np.array_equal(values, other.arrays[name], equal_nan=values.dtype.kind == "f")
        for name, values in one.arrays.items()
    )


def predictions_of_logits(logits: NDArray[np.floating]) -> dict[str, NDArray[Any]]:
    """Predicted class of each image and its probability.

    Args:
        logits: (N, K), K below 65,536.

    Returns:
        ``predicted`` (N,) uint8 or uint16, the first of equal logits, and
        ``confidence`` (N,) float16 in [0, 1], NaN where logits are not finite.
    """
    logits = logits.astype(np.float64)
    kind = np.uint8 if logits.shape[1] <= 256 else np.uint16
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return {
        "predicted": logits.argmax(1).astype(kind),
        "confidence": (1 / shifted.sum(1)).astype(np.float16),
    }


def _copy(source: Path, target: Path, published: Published) -> None:
    """Copy a file if it has changed."""
    if file_digest(source) == file_digest(target):
        return
    with complete_or_absent(target) as temporary:
        shutil.copyfile(source, temporary)
    published.written.append(target)


def main(arguments: Sequence[str] | None = None) -> int:
    """Publish a study's folder of work as records.

    Args:
        arguments: of the command; its own without them.

    Returns:
        1 where a file is refused, else 0.
    """
    parser = argparse.ArgumentParser(description="Publish the records of a study.")
    parser.add_argument("study")
    parser.add_argument("--work", type=Path, default=PROJECT_ROOT / "work")
    parser.add_argument("--reports", type=Path, default=PROJECT_ROOT / "reports")
    options = parser.parse_args(arguments)
    folder = inside(options.reports, options.study) / RECORDS
    published = publish(inside(options.work, options.study), folder)
    print("\n".join([str(published), *published.refused]))
    return int(bool(published.refused))


if __name__ == "__main__":
    sys.exit(main())
