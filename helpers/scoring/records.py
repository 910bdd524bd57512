"""Records: published values of a study's models, without weights and pixels.

``reports/<study>/records`` has the folders of ``work/<study>``. Readers look in the
latter and then in the former, and records of two machines are merged by copying files:

- ``data.json``, ``images.npz``: labels, classes, boxes, split and fingerprint of all
  images;
- ``runs/<run>``: configuration, result and history of a run, with the digest of its
  weights;
- ``kept/<part>-<digest>/<model>.npz``: values of a model by part, with
  ``settings.json``.
"""

import argparse
import os
import shutil
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from helpers.files import (
    KEPT,
    LABELS,
    MANIFEST,
    PROJECT_ROOT,
    RECORDS,
    DamagedFileError,
    complete_or_absent,
    file_digest,
    inside,
    is_scored,
    read_arrays,
    read_json,
    read_table,
    write_json,
)

CATALOGUE = "catalogue.parquet"  # in a folder of work: the models of notebook 02
SETTINGS = "settings.json"  # in the folder of a part: what decides its values
WEIGHTS = ".weights"  # array of a file: digest of the weights behind its values
OF_RUN = ("config.json", "history.parquet", "result.json")  # the result comes last
# Beginnings of the names of parts that are not published: features of images and probes
# of the trade-off study, which no table needs.
LEFT_OUT = ("features-", "probes-")
OF_NO_RUN = ("untrained-", "masks-")  # the same of parts that belong to no run
LARGE = ("maps_16",)  # arrays that are not published: maps in 16 bits (8 bits are)
# Maps are published of the first scored images, which are drawn at random: of 11,173
# images of 224 px all maps of a network take 485 kB, and these 65 kB. Values of single
# images, from which tables are made, are published of all.
IMAGES_WITH_MAPS = 1500
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)  # of files in an .npz: equal values, equal bytes


@dataclass
class Published:
    """Records after ``publish``, and what it wrote and refused."""

    folder: Path
    runs: set[str] = field(default_factory=set)  # ids that have records now
    models: set[str] = field(default_factory=set)  # ids with values of measures
    written: list[Path] = field(default_factory=list)  # files that are new or changed
    refused: list[str] = field(default_factory=list)  # sentences

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.folder.rglob("*.*"))

    def __str__(self) -> str:
        """Sentence on the numbers of runs, models and files, and their size."""
        return (
            f"{self.folder}: {len(self.runs)} runs, {len(self.models)} of their models "
            f"scored, {self.size / 1e6:.1f} MB; {len(self.written)} files are new or "
            "changed"
        )


def publish(work: Path, folder: Path) -> Published:
    """Publish the complete results in a study's folder of work as its records.

    A run that is still training is left out, and so are weights, pixels and logits; of
    logits the predicted class and its probability are published. Each file is written
    whole, and only where its content changed.

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
    for name in _run_names(work):
        try:
            _publish_run(work, name, published)
        except ValueError as fault:  # a damaged file, which costs its run alone
            published.refused.append(str(fault))
    for part in sorted((work / KEPT).glob("*-*")):
        if not part.name.startswith(LEFT_OUT):
            _publish_part(part, work, published)
    return published


def _publish_images(work: Path, published: Published) -> None:
    if not (work / MANIFEST).is_file():
        raise FileNotFoundError(
            f"{work / MANIFEST} is not there, so nothing of this study can be "
            "published; run notebooks/01_data_subset.ipynb for it, or `python -m "
            f"helpers.sweep {work.name}`"
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
    _write_manifest(manifest, target, published)


def _write_manifest(
    manifest: Mapping[str, Any], target: Path, published: Published
) -> None:
    """Write the manifest of the images, without a path of this machine alone."""
    parameters = dict(manifest["parameters"])
    path = Path(parameters.get("data_path") or "")
    if path.is_absolute() or ".." in path.parts:
        parameters["data_path"] = f"data/{path.name}"
    manifest = dict(manifest) | {"parameters": parameters}
    if not target.is_file() or read_json(target) != manifest:
        write_json(target, manifest)
        published.written.append(target)


def _run_names(work: Path) -> list[str]:
    """Complete runs of a study: of its catalogue and newer ones; all without one."""
    complete = sorted(path.parent.name for path in work.glob("runs/*/result.json"))
    if not (work / CATALOGUE).is_file():
        return complete
    planned = set(read_table(work / CATALOGUE)["run_id"])
    newer = (work / CATALOGUE).stat().st_mtime
    return [
        name
        for name in complete
        if name in planned
        or (work / "runs" / name / "result.json").stat().st_mtime > newer
    ]


def _publish_run(work: Path, name: str, published: Published) -> None:
    source = work / "runs" / name
    target = inside(published.folder / "runs", name)
    result = read_json(source / "result.json")
    for snapshot in result["snapshots"]:
        weights = source / f"snapshot-{snapshot['snapshot']}.safetensors"
        if weights.is_file() and not snapshot.get("digest"):
            snapshot["digest"] = file_digest(weights)
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
    for file in OF_RUN[:-1]:
        if (source / file).is_file():
            _copy(source / file, target / file, published)
    if not (target / "result.json").is_file():
        write_json(target / "result.json", result, sealed=True)
        published.written.append(target / "result.json")
    published.runs.add(name)


def _publish_part(part: Path, work: Path, published: Published) -> None:
    target = inside(published.folder / KEPT, part.name)
    for path in sorted(part.glob("*.npz")):
        run = path.stem.rpartition("@")[0]
        if part.name.startswith(OF_NO_RUN):
            weights = ""
        elif run in published.runs:
            weights = _weights(published.folder / "runs" / run, path.stem)
        else:
            continue
        if run:
            published.models.add(path.stem)
        if _is_up_to_date(path, target / path.name):
            continue
        try:
            arrays = _arrays_to_publish(path, weights)
        except DamagedFileError as fault:
            published.refused.append(
                f"{path} is damaged ({fault.cause}); run the notebook again, which "
                "makes it anew"
            )
            continue
        if arrays is None:
            published.refused.append(
                f"{path} is of other weights than the run has; run the notebook again, "
                "which makes it anew"
            )
            continue
        _save(path, target / path.name, arrays, published)
    settings = part / SETTINGS
    if settings.is_file() and target.is_dir():
        _copy(settings, target / SETTINGS, published)


def _weights(run: Path, model_id: str) -> str:
    """Digest of the weights of a model of a published run; "" where it is unknown."""
    snapshots = read_json(run / "result.json")["snapshots"]
    digests = {item["snapshot"]: item.get("digest", "") for item in snapshots}
    return digests.get(model_id.rpartition("@")[2], "")


def _arrays_to_publish(path: Path, weights: str) -> dict[str, NDArray[Any]] | None:
    """Arrays of a file without large ones; None if they are of other weights."""
    arrays = read_arrays(path)
    of_file = str(arrays.get(WEIGHTS, weights))
    if weights and of_file != weights:
        return None
    if weights:
        arrays[WEIGHTS] = np.array(weights)
    for name in LARGE:
        arrays.pop(name, None)
    if "maps" in arrays:
        arrays["maps"] = arrays["maps"][:IMAGES_WITH_MAPS]
    logits = arrays.pop("logits", None)
    return arrays if logits is None else arrays | predictions_of_logits(logits)


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


def _is_up_to_date(source: Path, target: Path) -> bool:
    return target.is_file() and target.stat().st_mtime == source.stat().st_mtime


def _copy(source: Path, target: Path, published: Published) -> None:
    """Copy a file if it has changed."""
    if _is_up_to_date(source, target) or file_digest(source) == file_digest(target):
        return
    with complete_or_absent(target) as temporary:
        shutil.copyfile(source, temporary)
    _same_time(source, target)
    published.written.append(target)


def _save(
    source: Path,
    target: Path,
    arrays: Mapping[str, NDArray[Any]],
    published: Published,
) -> None:
    """Write arrays as an .npz whose bytes depend on the arrays alone."""
    with complete_or_absent(target) as temporary:
        with zipfile.ZipFile(
            temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=9
        ) as file:
            for name, array in arrays.items():
                entry = zipfile.ZipInfo(f"{name}.npy", _FIXED_TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                with file.open(entry, "w") as member:
                    npy.write_array(member, np.asanyarray(array), allow_pickle=False)
        if file_digest(temporary) != file_digest(target):
            published.written.append(target)
    _same_time(source, target)


def _same_time(source: Path, target: Path) -> None:
    """Give a published file the time of its source, see ``_is_up_to_date``."""
    time = source.stat().st_mtime_ns
    os.utime(target, ns=(time, time))


def main(arguments: Sequence[str] | None = None) -> int:
    """Publish a study's folder of work as records; 1 where a file is refused."""
    parser = argparse.ArgumentParser(description="Publish the records of a study.")
    parser.add_argument("study")
    parser.add_argument("--work", type=Path, default=PROJECT_ROOT / "work")
    parser.add_argument("--reports", type=Path, default=PROJECT_ROOT / "reports")
    options = parser.parse_args(arguments)
    records = inside(options.reports, options.study) / RECORDS
    published = publish(inside(options.work, options.study), records)
    print("\n".join([str(records), *published.refused]))
    return int(bool(published.refused))


if __name__ == "__main__":
    sys.exit(main())
