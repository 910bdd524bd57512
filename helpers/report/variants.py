"""A study's main report and its variants side by side: the parameters in which they differ, and the primary numbers of each."""

import csv
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LISTING = "published.json"  # in the folder of a report: its notebooks, their parameters, and the digest of every file


def read_listing(folder: Path) -> dict[str, Any]:
    """Read what a report's folder says it holds; empty where it says nothing readable."""
    try:
        found = json.loads((folder / LISTING).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("parameters"), dict) else {}


def side_by_side(folder: Path) -> list[dict[str, Any]]:
    """Compare a report with its variants.

    Args:
        folder: reports/<study>, with variants/<name> below it.

    Returns:
        One row for the main report and one per variant, in the order of their names: name, page (relative to the folder), differs
        (parameter to its value, where it is not the main report's), and numbers (see ``primary_numbers``). No row without a variant.
    """
    main = read_listing(folder)
    variants = {path.parent.name: path.parent for path in sorted(folder.glob(f"variants/*/{LISTING}")) if read_listing(path.parent)}
    if not variants:
        return []
    rows = [{"name": "main report", "page": "index.html", "differs": {}, "numbers": primary_numbers([folder])}]
    for name, place in variants.items():
        differs = differing_parameters(main.get("parameters", {}), read_listing(place)["parameters"])
        numbers = primary_numbers([place, folder])
        rows.append({"name": name, "page": f"variants/{name}/index.html", "differs": differs, "numbers": numbers})
    return rows


def differing_parameters(main: Mapping[str, Mapping[str, Any]], own: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Map each parameter whose value is not the main report's to "value (main: value)"; one of one notebook alone carries its name."""
    found: dict[str, str] = {}
    for notebook, values in own.items():
        for name, value in values.items():
            other = main.get(notebook, {}).get(name)
            if value != other:
                text = f"{value} (main: {other})"
                found[name if found.get(name, text) == text else f"{notebook}.{name}"] = text
    return found


def primary_numbers(folders: list[Path]) -> dict[str, str]:
    """Read the numbers that a report is compared by, from the first folder that has the table; none where no table is there.

    Returns:
        Pearson r of IoU and IoU-B with the gap over all models that are analysed, with n and 95 % interval; the mean gap in points;
        the measure with the largest |r| with the gap and its adjusted p, baselines apart.
    """
    found: dict[str, str] = {}
    overlaps = [row for row in _rows(folders, "table3_iou") if row.get("architecture") in ("Total", "pooled")]
    for measure, title in (("iou", "r(IoU, gap)"), ("iou_b", "r(IoU-B, gap)")):
        rows = [row for row in overlaps if row.get("measure") == measure]
        if rows:
            row = min(rows, key=lambda item: _number(item.get("threshold")))  # the lowest threshold leaves most models in
            interval = f"{_short(row, 'ci_low')} to {_short(row, 'ci_high')}"
            found[title] = f"{_short(row, 'pearson_r')} ({interval}; n = {row.get('n', '?')})"
    gaps = [_number(row.get("gap")) for row in _rows(folders, "catalogue") if not row.get("left_out")]
    gaps = [gap for gap in gaps if math.isfinite(gap)]
    if gaps:
        found["mean gap"] = f"{100 * sum(gaps) / len(gaps):.1f} points ({len(gaps)} models)"
    ranked = [
        row for row in _rows(folders, "measures_ranking") if math.isfinite(_number(row.get("p_adjusted"))) and row["baseline"] != "True"
    ]
    if ranked:
        first = max(ranked, key=lambda row: abs(_number(row["r_gap"])))
        found["largest |r|"] = f"{first['title']} ({_short(first, 'r_gap')}, adjusted p {_short(first, 'p_adjusted')})"
    return found


def _rows(folders: list[Path], table: str) -> list[dict[str, str]]:
    for folder in folders:
        path = folder / "tables" / f"{table}.csv"
        if path.is_file():
            with path.open(newline="", encoding="utf-8") as file:
                return [row for row in csv.DictReader(file) if None not in row]
    return []


def _number(text: Any) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan


def _short(row: Mapping[str, str], column: str) -> str:
    value = _number(row.get(column))
    return f"{value:.2f}" if math.isfinite(value) else "—"
