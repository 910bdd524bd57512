"""The picture that opens a study: maps of two networks, and all by their gap.

It is drawn from published files (maps, boxes, small pictures of the images, catalogue
and scores), so a clone draws it without images.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec, GridSpecFromSubplotSpec
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from helpers.cams import localize
from helpers.data.boxes import box_masks
from helpers.files import complete_or_absent
from helpers.measures import localization
from helpers.report import cams, style, tables
from helpers.report.markup import kind_words
from helpers.report.studies import published_models
from helpers.scoring.published_maps import read_maps
from helpers.statistics.gap_tables import START

WIDE = "figures/opening.png"
NARROW = "figures/opening-narrow.png"
CAPTION = (
    "The networks with the smallest and the largest gap on four photographs, chosen "
    "across the range of their difference in overlap. Bright: where a network looks; "
    "yellow: the object's box; white: a mask of equal area, the brightest pixels. "
    "Bottom left: the mask by the published and by the corrected cut. Right: all "
    "networks."
)
PUBLISHED = "iou"
CORRECTED = "area_matched_iou"
_THRESHOLD = 0.1  # of the published measure
_PHOTOGRAPHS = 4
_DPI = 100
_MOST_KINDS = 8
_DIM = 0.3  # brightness where a network does not look at all
_STARTS = {True: "pretrained", False: "from scratch"}
_PALETTES = {"pretrained": "Blues", "from scratch": "Oranges"}
_TITLES = {PUBLISHED: "Published overlap", CORRECTED: "Corrected overlap"}
_AXES = {PUBLISHED: "IoU", CORRECTED: "IoU above chance"}
Colour = tuple[float, float, float]


@dataclass
class Look:
    """Maps of one network on all pictured photographs."""

    name: str
    gap: float  # training minus test accuracy
    maps: Tensor  # (photographs, side, side) in [0, 1]


@dataclass
class Scene:
    """Content of the picture.

    Attributes:
        photographs: (4, side, side, 3) uint8.
        boxes: (4, K, 4) half-open, rows of zeros are padding.
        looks: the networks with the smallest and the largest gap.
        networks: a row per network of the primary analysis, with its measures.
        start_r: correlation of the start alone with the gap; NaN where all are alike.
        central: scores of one fixed central map, by measure.
    """

    photographs: NDArray[np.uint8]
    boxes: Tensor
    looks: tuple[Look, Look]
    networks: pd.DataFrame
    start_r: float
    central: Mapping[str, float]


def scene_of(report: Path) -> Scene | None:
    """Choose networks and photographs of a report by fixed rules.

    Args:
        report: folder of a study's report.

    Returns:
        None where the report has no maps or small pictures, or fewer than two networks.
    """
    published = read_maps(report)
    if published is None or len(published["thumbnails"]) < _PHOTOGRAPHS:
        return None
    try:
        networks = published_models(report.parent, report.name)
    except FileNotFoundError:
        return None
    networks = networks[networks["model_id"].isin(published["model_ids"])]
    networks = networks.reset_index(drop=True)
    if len(networks) < 2 or not {PUBLISHED, CORRECTED} <= {*networks.columns}:
        return None
    extremes = networks.sort_values("gap", kind="stable").iloc[[0, -1]]
    size = int(published["image_size"])
    pictured = len(published["thumbnails"])
    all_boxes = torch.as_tensor(published["boxes"])
    boxes = all_boxes[:pictured]
    inside = box_masks(boxes, size)
    looks = [_look(row, published, pictured, size) for _, row in extremes.iterrows()]
    overlaps = [
        localize.mask_iou(area_mask(look.maps, inside), inside).double()
        for look in looks
    ]
    chosen = spread(overlaps[0] - overlaps[1], inside, _PHOTOGRAPHS)
    for look in looks:
        look.maps = look.maps[chosen]
    return Scene(
        photographs=np.stack([_decoded(published, row, size) for row in chosen]),
        boxes=boxes[chosen],
        looks=(looks[0], looks[1]),
        networks=networks,
        start_r=_r_of_start(report),
        central=localization.scores_of_fixed_map(all_boxes, size, _THRESHOLD),
    )


def _r_of_start(report: Path) -> float:
    """Correlation of the start alone with the gap; NaN where no table has it."""
    primary = tables.read(report, "primary")
    if primary is None:
        return np.nan
    rows = primary[primary["measure"].eq(START)]
    return float(rows["r_gap"].iloc[0]) if len(rows) else np.nan


def _look(
    row: pd.Series, published: Mapping[str, Any], pictured: int, size: int
) -> Look:
    place = published["model_ids"].tolist().index(row["model_id"])
    maps = torch.from_numpy(published["maps"][place, :pictured]).float() / 255
    return Look(kind_words(row), float(row["gap"]), localize.upsample(maps, size))


def _decoded(published: Mapping[str, Any], row: int, size: int) -> NDArray[np.uint8]:
    picture = Image.open(io.BytesIO(published["thumbnails"][row])).convert("RGB")
    return np.asarray(picture.resize((size, size)))


def area_mask(maps: Tensor, inside: Tensor) -> Tensor:
    """Masks of the highest pixels of each map, as large as the object's box.

    Args:
        maps: (n, side, side).
        inside: (n, side, side), pixels of the boxes.

    Returns:
        (n, side, side) of bool; of equal pixels at the limit all are taken.
    """
    flat = maps.flatten(1)
    ordered = flat.sort(1, descending=True).values
    last = inside.flatten(1).sum(1).clamp(min=1) - 1
    limits = ordered.gather(1, last.unsqueeze(1))
    return (flat >= limits).view(inside.shape)


def spread(differences: Tensor, inside: Tensor, count: int) -> list[int]:
    """Photographs spread evenly over the differences, the largest first.

    Args:
        differences: (n,) overlap of the first network minus that of the second.
        inside: (n, side, side), pixels of the boxes; images without one are left out.
        count: number of photographs.

    Returns:
        Their numbers: the photographs in order are cut into ``count`` equal parts, and
        the middle one of each part is taken.
    """
    usable = inside.flatten(1).any(1) & differences.isfinite()
    places = usable.nonzero().squeeze(1)
    ordered = places[differences[places].argsort(descending=True, stable=True)]
    middles = (torch.arange(count) + 0.5) / count * len(ordered)
    return ordered[middles.long()].tolist()


def draw(scene: Scene, *, narrow: bool = False) -> Figure:
    """Draw the picture.

    Args:
        scene: see ``scene_of``.
        narrow: for a phone: 600 pixels wide in place of 1,200, with the plots below
            the photographs.
    """
    style.use()
    with plt.rc_context({"figure.constrained_layout.use": False}):
        figure = plt.figure(figsize=(6, 11.4) if narrow else (12, 6), dpi=_DPI)
        if narrow:
            for_tiles = {"left": 0.02, "right": 0.98, "bottom": 0.48, "top": 0.965}
            for_plots = {"left": 0.13, "right": 0.97, "bottom": 0.205, "top": 0.395}
            legend = (0.02, 0.0)
        else:
            for_tiles = {"left": 0.008, "right": 0.53, "bottom": 0.012, "top": 0.945}
            for_plots = {"left": 0.6, "right": 0.985, "bottom": 0.37, "top": 0.87}
            legend = (0.555, 0.0)
        tiles = GridSpec(1, 1, figure, **for_tiles)
        plots = GridSpec(1, 2, figure, wspace=0.2, **for_plots)
        _draw_tiles(
            tiles[0].subgridspec(3, _PHOTOGRAPHS, wspace=0.05, hspace=0.2), scene
        )
        axes = plots.subplots(sharey=True)
        colours = _draw_networks(axes, scene)
        _draw_legend(figure, colours, scene, legend)
    return figure


def _draw_tiles(places: GridSpecFromSubplotSpec, scene: Scene) -> None:
    """Three rows of four: maps of both networks, and masks of both measures."""
    axes = places.subplots()
    side = scene.photographs.shape[1]
    inside = box_masks(scene.boxes, side)
    for row, look in enumerate(scene.looks):
        masks = area_mask(look.maps, inside)
        size = "Smallest" if row == 0 else "Largest"
        _head(axes[row, 0], f"{size} gap, {100 * look.gap:.0f} points:", look.name)
        for column, ax in enumerate(axes[row]):
            _tile(ax, scene, column, _DIM + (1 - _DIM) * look.maps[column])
            ax.contour(masks[column], [0.5], colors="white", linewidths=1.5)
    _head(axes[2, 0], "Published cut:", "0.1 of the peak")
    _head(axes[2, 2], "Corrected:", "the box's area")
    cut = [look.maps[:1] >= _THRESHOLD for look in scene.looks]
    cut += [area_mask(look.maps[:1], inside[:1]) for look in scene.looks]
    for ax, mask, size in zip(axes[2], cut, 2 * ["small", "large"], strict=True):
        _tile(ax, scene, 0, torch.where(mask[0], 1.0, _DIM))
        iou = localize.mask_iou(mask, inside[:1]).item()
        label = ax.text(0.03, 0.04, f"{size} gap: {iou:.2f}", transform=ax.transAxes)
        label.set(fontsize=12.5, color="white")
        label.set_bbox({"facecolor": "black", "linewidth": 0, "pad": 1.5})


def _head(ax: Axes, bold: str, rest: str) -> None:
    """Write a line above a tile, its first words in bold."""
    title = ax.text(0, 1.04, bold, transform=ax.transAxes, fontsize=12.5)
    title.set_fontweight("bold")
    ax.annotate(f" {rest}", (1, 0), xycoords=title, va="bottom", fontsize=12.5)


def _tile(ax: Axes, scene: Scene, column: int, brightness: Tensor) -> None:
    pixels = scene.photographs[column] / 255 * brightness[:, :, None].numpy()
    ax.imshow(pixels, interpolation="bilinear")
    ax.set_axis_off()
    cams.draw_boxes(ax, scene.boxes[column])


def _draw_networks(axes: Sequence[Axes], scene: Scene) -> dict[str, Colour]:
    """Draw both measures against the gap; return the colours of kinds of training."""
    networks = scene.networks
    points = 100 * networks["gap"]
    kinds = pd.Series([kind_words(row) for _, row in networks.iterrows()])
    starts = networks["pretrained"].astype(bool).map(_STARTS)
    if kinds.nunique() > _MOST_KINDS:
        kinds = starts
    colours: dict[str, Colour] = {}
    for start, palette in _PALETTES.items():
        # By length first: "60 a class" comes before "125 a class".
        names = sorted(
            kinds[starts == start].unique(), key=lambda name: (len(name), name)
        )
        shades = seaborn.color_palette(palette, len(names) + 1)[1:]
        colours |= dict(zip(names, shades, strict=True))
    for ax, measure in zip(axes, (PUBLISHED, CORRECTED), strict=True):
        values = networks[measure]
        shades = kinds.map(colours).tolist()
        ax.scatter(values, points, s=58, c=shades, edgecolor="white", linewidth=0.7)
        ax.axvline(scene.central[measure], color="black", linewidth=1.2, linestyle="--")
        r = f"r = {values.corr(points):.2f}".replace("-", "−")
        ax.set_title(f"{_TITLES[measure]}\n{r}", loc="left", fontsize=13, weight="bold")
        ax.set_xlabel(_AXES[measure], fontsize=11.5)
        ax.tick_params(labelsize=11.5)
        ax.locator_params("x", nbins=3)
    axes[0].set_ylabel("gap (percentage points)", fontsize=12.5)
    return colours


def _draw_legend(
    figure: Figure,
    colours: Mapping[str, Colour],
    scene: Scene,
    place: tuple[float, float],
) -> None:
    heads = ["Dashed: the same central map for every photograph."]
    if np.isfinite(scene.start_r):
        r = f"{scene.start_r:.2f}".replace("-", "−")
        heads.insert(0, f"Pretrained or not, alone: r = {r}.")
    dots = [
        Line2D([], [], marker="o", linestyle="", markersize=8, color=colour)
        for colour in colours.values()
    ]
    legend = figure.legend(
        dots,
        colours,
        loc="lower left",
        bbox_to_anchor=place,
        ncols=2,
        fontsize=11.5,
        title="\n".join(heads),
        handletextpad=0.1,
        columnspacing=0.8,
    )
    legend.set_alignment("left")
    legend.get_title().set(fontsize=12, multialignment="left")


def digest(scene: Scene) -> str:
    """Digest of all that the picture shows, which is stored in its file too."""
    shown = blake2b(digest_size=16)
    for look in scene.looks:
        shown.update(f"{look.name} {look.gap:.6f}".encode())
        shown.update((255 * look.maps).round().byte().numpy().tobytes())
    shown.update(scene.photographs.tobytes())
    shown.update(scene.boxes.numpy().tobytes())
    points = scene.networks[["gap", PUBLISHED, CORRECTED]].to_numpy(dtype=float)
    numbers = [
        *points.ravel(),
        scene.start_r,
        *map(scene.central.get, (PUBLISHED, CORRECTED)),
    ]
    shown.update(" ".join(f"{number:.6f}" for number in numbers).encode())
    return shown.hexdigest()


def write(report: Path) -> bool:
    """Write the picture of a report, wide and narrow.

    Files whose content would not change are left as they are.

    Args:
        report: folder of a study's report.

    Returns:
        False where it cannot be drawn.
    """
    scene = scene_of(report)
    if scene is None:
        return False
    source = digest(scene)
    for name, narrow in ((WIDE, False), (NARROW, True)):
        if source_of(report / name) == source:
            continue
        (report / name).parent.mkdir(exist_ok=True)
        # With hinting, "=" and "−" of this font look bold.
        with (
            complete_or_absent(report / name) as temporary,
            plt.rc_context({"text.hinting": "none"}),
        ):
            figure = draw(scene, narrow=narrow)
            figure.savefig(
                temporary, format="png", facecolor="white", metadata={"Source": source}
            )
        plt.close(figure)
    return True


def source_of(picture: Path) -> str:
    """The digest that is stored in a picture; "" if the file is absent."""
    if not picture.is_file():
        return ""
    with Image.open(picture) as image:
        return str(image.info.get("Source", ""))
