"""The published maps of a report that is older than tables/maps.npz, from what it kept of some models and images (story/looks.npz).

``python -m benchmarks.maps_of_report compact20``. Of the kept images those that were trained on are taken, as 03 publishes them.
"""

import argparse
import json

import numpy as np

from helpers.files import PROJECT_ROOT, complete_or_absent
from helpers.scoring.maps_kept import MAPS


def main() -> None:
    """Write the maps of a report, and remove what they were taken from."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("study")
    folder = PROJECT_ROOT / "reports" / asked.parse_args().study
    with np.load(folder / "story/looks.npz", allow_pickle=False) as file:
        kept = {name: file[name] for name in file.files}
    facts = json.loads(kept["facts"].tobytes())
    rows = np.flatnonzero(np.array(facts["images"]["split"]) == "training")
    labels = np.array(facts["images"]["label"])[rows]
    ends = kept["picture_bytes"].cumsum()
    pictures = [kept["pictures"][ends[row] - kept["picture_bytes"][row] : ends[row]] for row in rows]
    arrays = {
        "model_ids": np.array(facts["model_ids"]),
        "maps": (kept["maps"][:, rows] * (255 / 250)).round().astype(np.uint8),  # 250 is 1 in the older file
        "right": kept["predicted"][:, rows] == labels,
        "boxes": kept["boxes"][rows],
        "labels": labels.astype(np.int16),
        "image_size": np.int64(facts["size"]),
        "class_names": np.array(facts["class_names"], dtype=str),
        "thumbnails": np.concatenate(pictures),
        "ends": np.cumsum([len(picture) for picture in pictures]),
    }
    with complete_or_absent(folder / MAPS) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
    (folder / "story/looks.npz").unlink()


if __name__ == "__main__":
    main()
