"""Sentences that read error and Kappa over noise, unseen classes and size, computed from the tables."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from helpers.kappa_cells import Level
from helpers.kappa_published import huang2025_table1
from helpers.readings import count, listed, percent
from helpers.tradeoff import Surface, TradeoffPoint

_WHAT = {"error_mean": "mean error", "kappa_loss_mean": "mean Kappa loss", "divergence": "divergence from the clean cell"}
_AXES = {"ssim": "SSIM", "unseen_fraction": "the backbone-unseen fraction", "weights": "size"}


def _millions(weights: float) -> str:
    return f"{weights / 1e6:,.3g} million weights"


def weights_named(origins: Sequence[str]) -> str:
    """Name where the weights of some networks come from, in a few words for a title."""
    each = list(dict.fromkeys(origins))
    return listed([f"{origin} weights" if origin == "random" else f"weights {origin}" for origin in each], 3)


def heading(name: str, cells: pd.DataFrame) -> str:
    """Title a section with the family and its weights, so that random ones are never taken for trained ones."""
    return f"### {name[0].upper()}{name[1:]}: {weights_named(cells['origin'])}"


def weights_title(table: pd.DataFrame) -> str:
    """Open a figure's reading with where the weights come from: "**Random weights.**"."""
    text = weights_named(table["origin"])
    return f"**{text[0].upper()}{text[1:]}.**"


def classes_named(names: Sequence[str], seen: int, trained: bool) -> str:
    """Say which classes the backbones have seen, and what "unseen" means here.

    Args:
        names: all classes, the seen ones first.
        seen: how many they are.
        trained: whether any backbone was adapted to the seen classes; False with random weights or a library's.
    """
    unseen = names[seen:]
    begin = f"{count(seen, 'class')} {'adapt the backbones' if trained else 'count as seen, though no backbone was adapted to them'}"
    if not unseen:
        return f"**{begin}, and no class is backbone-unseen**: this study measures noise and size alone."
    return (
        f"**{begin}; {count(len(unseen), 'more class')} {'is' if len(unseen) == 1 else 'are'} backbone-unseen**: {listed(unseen, 10)}. "
        "The linear probe is fitted to images of every class that it is tested on, so this is no zero-shot claim."
    )


def noise_read(generator: str, levels: Sequence[Level]) -> str:
    """Say how near the mean SSIM of the test images comes to its targets, and at what strengths."""
    far = max(abs(level.reached - level.target) for level in levels)
    strongest = max(levels, key=lambda level: level.strength)
    return (
        f"{count(len(levels), 'level')} of noise by {generator}: the mean SSIM of the test images misses its target by at most {far:.4f}; "
        f"the strongest noise has SSIM {strongest.reached:.3f} at strength {strongest.strength:.3g}."
    )


def beside_table1(table: pd.DataFrame) -> pd.DataFrame:
    """List the networks with their size, published sizes beside them (Huang et al. 2025, Table 1)."""
    first = table.drop_duplicates("model")[["family", "model", "model_id", "origin", "weights"]]
    own = first.assign(weights_millions=first["weights"] / 1e6).drop(columns="weights")
    theirs = huang2025_table1().rename(columns={"weights_millions": "published_weights_millions"})
    return own.merge(theirs, how="left", on=["family", "model"])


def networks_read(networks: pd.DataFrame) -> str:
    """Count the networks, their range of sizes and where their weights come from."""
    sizes = networks["weights_millions"]
    return (
        f"**{count(len(networks), 'network')}** of {sizes.min():.3g} to {sizes.max():.3g} million weights, heads left out "
        f"({weights_named(networks['origin'])})."
    )


def cells_read(cells: pd.DataFrame, classes: pd.DataFrame) -> str:
    """Say what range the cells take and how many classes had no test images; the clean, all-seen cell first."""
    clean = cells[(cells["ssim"] == cells["ssim"].max()) & (cells["unseen_fraction"] == cells["unseen_fraction"].min())]
    counted = f"**{count(len(cells), 'cell')}** from {count(len(classes), 'row')} of one class each; "
    counted += f"{count(int(cells['dropped'].sum()), 'class')} without test images dropped."
    if not clean["error_mean"].notna().any():
        return f"{counted} No clean cell has a class with test images."
    best, chance = clean.loc[clean["error_mean"].idxmin()], 1 - 1 / clean["classes"].max()
    return (
        f"{counted} Clean and with seen classes only, the mean error runs from {percent(best['error_mean'])} ({best['model']}) to "
        f"{percent(clean['error_mean'].max())}, where guessing gives {percent(chance)}."
    )


def heat_read(cells: pd.DataFrame, column: str) -> str:
    """Say how much a number grows from the clean cell with seen classes to the noisiest, and to the largest unseen fraction."""
    clean, seen = cells["ssim"].max(), cells["unseen_fraction"].min()
    noisy, unseen = cells["ssim"].min(), cells["unseen_fraction"].max()
    grid = cells.pivot(index="model", columns=["ssim", "unseen_fraction"], values=column)
    start, with_noise, with_unseen = (grid[place].median() for place in ((clean, seen), (noisy, seen), (clean, unseen)))
    if not np.isfinite([start, with_noise, with_unseen]).all():
        return f"The {_WHAT[column]} is undefined at the ends of the grid."
    moves = {"noise": with_noise - start, "unseen classes": with_unseen - start}
    more = max(moves, key=lambda name: moves[name])
    verdict = (
        f"Over these ranges {more} cost{'s' if more == 'noise' else ''} more." if len(set(moves.values())) == 2 else "Both move it alike."
    )
    return (
        f"The {_WHAT[column]}, median over {count(len(grid), 'network')}: {start:.3f} clean and seen, "
        f"{with_noise:.3f} at SSIM {noisy:.2f}, {with_unseen:.3f} with {percent(unseen)} of the classes backbone-unseen. {verdict}"
    )


def diagram_read(classes: pd.DataFrame) -> str:
    """Say where the classes lie in the clean and in the noisiest images, and how many are no better than chance."""
    kept = classes.dropna(subset=["error", "kappa_loss"])
    if not len(kept):
        return "No class has test images."
    each = []
    for level in sorted(kept["ssim"].unique(), reverse=True):
        part = kept[kept["ssim"] == level]
        chance = int((part["kappa_loss"] >= 1).sum())
        each.append(
            f"at SSIM {level:.2f} the median class has an error of {percent(part['error'].median())}, {chance} of {len(part):,} "
            "are no better than chance"
        )
    return f"One point is one class of one network: {'; '.join(each)}."


def divergence_read(cells: pd.DataFrame) -> str:
    """Name the most and the least stable network by the mean divergence of its cells from its clean cell."""
    moved = cells[cells["divergence"] > 0].groupby("model")["divergence"].mean().dropna().sort_values()
    if not len(moved):
        return "No cell has moved from its clean cell."
    if len(moved) == 1:
        return f"{moved.index[0]} moves from its clean cell by {moved.iloc[0]:.2f} nats on average."
    fewest = int(cells["classes"].min())
    return (
        f"The most stable network is {moved.index[0]} ({moved.iloc[0]:.2f} nats from its clean cell on average), the least "
        f"{moved.index[-1]} ({moved.iloc[-1]:.2f}). With {count(fewest, 'class')} in a cell the histograms are coarse, and the numbers are "
        "mostly the share of classes that left their bin."
    )


def marginals_read(marginals: pd.DataFrame) -> str:
    """Say along which axis the mean error changes most, from end to end."""
    spans = {}
    for axis, part in marginals.groupby("axis", sort=False):
        error = part.sort_values("level")["error_mean"]
        if len(error) > 1 and error.notna().all():
            spans[axis] = error.iloc[-1] - error.iloc[0]
    if not spans:
        return "No axis has two levels, so there is no marginal to follow."
    each = [f"{100 * span:+.1f} points along {_AXES[axis]}" for axis, span in spans.items()]
    return f"From its lowest to its highest level the mean error moves by {listed(each)}."


def point_read(name: str, point: TradeoffPoint, surface: Surface, strength: float) -> str:
    """State the trade-off point of a family in words, with its two bounds, and say where it lies on the edge of what was measured."""
    place = {"ssim": point.ssim, "unseen_fraction": point.unseen_fraction, "weights": point.weights}
    single = [axis for axis, levels in zip(place, surface.levels, strict=True) if len(levels) == 1]
    edge = [
        axis
        for axis, levels in zip(place, surface.levels, strict=True)
        if axis not in single and np.isclose(place[axis], levels[[0, -1]], rtol=1e-6).any()
    ]
    text = (
        f"**{name}**, lambda {strength:g}: the balance lies at SSIM {point.ssim:.3f}, {percent(point.unseen_fraction)} "
        f"backbone-unseen classes and {_millions(point.weights)}; there the mean error is {point.generalization_bound.mean:.3f} "
        f"(generalization bound) and the mean Kappa loss {point.diversity_bound.mean:.3f} (diversity bound)."
    )
    if edge:
        text += f" It lies on the edge of what was measured in {listed([_AXES[axis] for axis in edge])}."
    if single:
        text += f" {listed([_AXES[axis] for axis in single]).capitalize()} has one level only, so nothing was traded there."
    return text


def sensitivity_read(table: pd.DataFrame) -> str:
    """Say how far the point and its bounds move over the values of lambda."""
    ends = table.sort_values("lambda").iloc[[0, -1]]
    low, high = (row for _, row in ends.iterrows())
    spread = np.ptp(table["generalization_bound"])
    return (
        f"from lambda {low['lambda']:g} to {high['lambda']:g} the point moves from SSIM {low['ssim']:.2f}, "
        f"{percent(low['unseen_fraction'])} unseen and {_millions(low['weights'])} to SSIM {high['ssim']:.2f}, "
        f"{percent(high['unseen_fraction'])} and {_millions(high['weights'])}; the generalization bound takes values that differ by up to "
        f"{spread:.3f}. Lambda is a choice, not a finding."
    )


def sign_errors_read(tables: Mapping[str, pd.DataFrame], titles: Mapping[str, str]) -> str:
    """Name the three measures that order the networks best, group by group, and say how many networks that rests on."""
    parts = []
    for name, table in tables.items():
        ranked = table.dropna(subset="mean_rank")
        networks = int(table["n"].max()) if len(table) else 0
        if not len(ranked):
            parts.append(f"**{name}**: {count(networks, 'network')} can be ordered, so no sign error is defined.")
            continue
        slices = [column for column in ranked if "_over_" in column]
        best = [f"{titles.get(row['measure'], row['measure'])} ({row[slices].mean():.2f})" for _, row in ranked.head(3).iterrows()]
        pairs = networks * (networks - 1) // 2
        parts.append(f"**{name}**, {count(networks, 'network')} and {count(pairs, 'pair')}: {listed(best)}.")
    return "Lowest mean sign error (0 every pair in order, 0.5 a coin): " + " ".join(parts)


def beside_published(table2: pd.DataFrame) -> str:
    """Say how the points stand to the published ones, and why they need not be alike."""
    own, theirs = (table2[(table2["source"] == "this study") == mine] for mine in (True, False))
    bounds = [part["generalization_bound"] for part in (own, theirs)]
    return (
        f"Generalization bounds from {bounds[0].min():.3f} to {bounds[0].max():.3f} here, {bounds[1].min():.3f} to {bounds[1].max():.3f} "
        "in the paper, whose networks were pretrained on hundreds of millions of images or on ImageNet; other classes and sizes, so only "
        "the way of reading is shared."
    )


def answer(points: Mapping[str, TradeoffPoint], origins: Mapping[str, Sequence[str]], strength: float) -> str:
    """Answer the notebook's question: how much noise and how many unseen classes each family takes, at what size and error."""
    each = [
        f"{name} ({weights_named(origins[name])}) balances at SSIM {point.ssim:.2f}, {percent(point.unseen_fraction)} "
        f"backbone-unseen classes and {_millions(point.weights)}, where {percent(point.generalization_bound.mean)} of a class is misread "
        "on average"
        for name, point in points.items()
    ]
    return f"The trade-off point at lambda {strength:g}. {'; '.join(each)}."
