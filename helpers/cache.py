"""Decoded images on disk: plain arrays and tables in a folder named by everything that decided them, or absent."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# Raise this when the meaning of the cached arrays changes: older caches are then never used.
_FORMAT = 1


def folder_for(cache_dir: Path, parameters: Mapping[str, Any]) -> Path:
    """Name the folder of a cache: a hash over every parameter, so that one made from others is never used by mistake."""
    canonical = json.dumps({**parameters, "format": _FORMAT}, sort_keys=True)
    return cache_dir / f"images-{blake2b(canonical.encode(), digest_size=8).hexdigest()}"


def write(folder: Path, arrays: Mapping[str, np.ndarray], tables: Mapping[str, pd.DataFrame], record: Mapping[str, Any]) -> None:
    """Write a cache beside its place and rename it; where another process was first, its cache stays."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
    try:
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        for name, table in tables.items():
            table.to_parquet(temporary / f"{name}.parquet", index=False)
        shapes = {name: [list(array.shape), str(array.dtype)] for name, array in arrays.items()}
        (temporary / "meta.json").write_text(json.dumps({**record, "arrays": shapes, "tables": sorted(tables)}))
        if folder.exists() and read(folder) is None:
            shutil.rmtree(folder)  # damaged
        if not folder.exists():
            try:
                temporary.rename(folder)
            except OSError:
                if read(folder) is None:
                    raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, pd.DataFrame], dict[str, Any]] | None:
    """Read a cache; None when there is none or it is damaged. Arrays are mapped, so that processes share the pages."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in meta["arrays"]}
        tables = {name: pd.read_parquet(folder / f"{name}.parquet") for name in meta["tables"]}
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None
    if any([list(array.shape), str(array.dtype)] != meta["arrays"][name] for name, array in arrays.items()):
        return None
    return arrays, tables, meta
