"""Do the tests notice a wrong sign, threshold, split, correction or seed? Each mutant is one such fault; a test of its room must fail.

    python -m tests.mutants [PART OF A NAME ...]

Works on a copy of the project, and takes some minutes; run by hand. Exit 1 where a mutant survives.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Mutant(NamedTuple):
    """One fault: in a file, ``old`` is replaced by ``new``; ``tests`` are what must notice it."""

    file: str
    old: str
    new: str
    tests: str


MUTANTS: list[Mutant] = [
    Mutant(
        "helpers/statistics/prediction.py",
        "_ridge(columns[:, ~outside], gap[~outside], columns[:, outside])",
        "_ridge(columns, gap, columns[:, outside])",
        "tests/statistics/test_prediction.py",
    ),
    Mutant(
        "helpers/statistics/prediction.py",
        "100 * np.abs(gap[outside] - predicted) / len(folds)",
        "100 * np.abs(gap[outside] - predicted)",
        "tests/statistics/test_prediction.py",
    ),
    Mutant(
        "helpers/statistics/prediction.py",
        "random.permutation(np.arange(len(names)) % count)[codes]",
        "random.permutation(np.arange(len(codes)) % count)",
        "tests/statistics/test_prediction.py",
    ),
    Mutant(
        "helpers/statistics/prediction.py",
        "dealt_folds(groups, seed=draws.seed)",
        "dealt_folds(groups)",
        "tests/statistics/test_prediction.py",
    ),
    Mutant(
        "helpers/statistics/prediction.py",
        "sign_flip_p(without - beside, groups, seed=draws.seed)",
        'sign_flip_p(without - beside, draws.models["cell"], seed=draws.seed)',
        "tests/statistics/test_prediction.py",
    ),
    Mutant(
        "helpers/statistics/prediction.py",
        "(1 - 1 / len(y) - along**2 @ shrinkage)",
        "(1 - along**2 @ shrinkage)",
        "tests/statistics/test_prediction.py",
    ),
    Mutant(
        "helpers/statistics/permutation.py",
        "pd.factorize(np.asarray(configurations))[0], np.random.default_rng(seed)",
        "pd.factorize(np.asarray(configurations))[0], np.random.default_rng()",
        "tests/statistics/test_permutation.py",
    ),
    Mutant(
        "helpers/statistics/permutation.py",
        "alike = np.column_stack([groups[order[starts]], sizes])",
        "alike = np.column_stack([0 * groups[order[starts]], sizes])",
        "tests/statistics/test_permutation.py",
    ),
    Mutant(
        "helpers/statistics/permutation.py",
        "(1 + count) / (1 + np.isfinite(null).sum(0))",
        "count / np.isfinite(null).sum(0)",
        "tests/statistics/test_permutation.py",
    ),
    Mutant(
        "helpers/statistics/permutation.py",
        "np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1))",
        "p[order] * np.arange(len(order), 0, -1)",
        "tests/statistics/test_permutation.py",
    ),
    Mutant(
        "helpers/statistics/permutation.py",
        'order = known[np.argsort(p[known], kind="stable")]',
        "order = known",
        "tests/statistics/test_permutation.py",
    ),
    Mutant(
        "helpers/statistics/permutation.py",
        "(null >= observed - 1e-9 * np.abs(observed))",
        "(null > observed + 1e-9 * np.abs(observed))",
        "tests/statistics/test_permutation.py",
    ),
    Mutant(
        "helpers/statistics/permutation.py",
        "signs @ sums >= sums.sum(0) - 1e-9",
        "np.abs(signs @ sums) >= np.abs(sums.sum(0)) - 1e-9",
        "tests/statistics/test_permutation.py",
    ),
    Mutant(
        "helpers/statistics/draws.py",
        'stream = TEST_IMAGES if name.partition("@")[0] == _TEST_ACCURACY else SCORING_IMAGES',
        "stream = SCORING_IMAGES",
        "tests/statistics/test_draws.py",
    ),
    Mutant(
        "helpers/statistics/draws.py",
        "to_numpy(dtype=float) - accuracy",
        "to_numpy(dtype=float) + accuracy",
        "tests/statistics/test_draws.py",
    ),
    Mutant("helpers/statistics/draws.py", "[(1 - level) / 2, (1 + level) / 2]", "[1 - level, level]", "tests/statistics/test_draws.py"),
    Mutant(
        "helpers/statistics/draws.py",
        ">= FEWEST_CONFIGURATIONS\n    usable",
        "> FEWEST_CONFIGURATIONS\n    usable",
        "tests/statistics/test_draws.py",
    ),
    Mutant(
        "helpers/statistics/draws.py",
        "np.tanh(drawn - np.where(inside, drawn - fixed, 0)",
        "np.tanh(drawn + np.where(inside, drawn - fixed, 0)",
        "tests/statistics/test_draws.py",
    ),
    Mutant(
        "helpers/statistics/draws.py",
        'configuration_weights(self.models["cell"], self.draws, self.seed)',
        "configuration_weights(self.models.index, self.draws, self.seed)",
        "tests/statistics/test_draws.py",
    ),
    Mutant(
        "helpers/statistics/draws.py",
        "return _counts(np.random.default_rng([seed, _CONFIGURATIONS]), draws, len(names))[:, codes]",
        "return _counts(np.random.default_rng(_CONFIGURATIONS), draws, len(names))[:, codes]",
        "tests/statistics/test_draws.py",
    ),
    Mutant(
        "helpers/statistics/primary.py",
        'models["train_accuracy"] > PAPER_ACCURACY',
        'models["train_accuracy"] >= PAPER_ACCURACY',
        "tests/statistics/test_primary.py",
    ),
    Mutant(
        "helpers/statistics/primary.py", 'models["label_noise"].eq(0)', 'models["label_noise"].ge(0)', "tests/statistics/test_primary.py"
    ),
    Mutant("helpers/statistics/primary.py", "1 - (1 - LEVEL) / looks", "1 - (1 - LEVEL) * looks", "tests/statistics/test_primary.py"),
    Mutant(
        "helpers/statistics/primary.py",
        "draws.permutations(permutations, within)",
        "draws.permutations(permutations)",
        "tests/statistics/test_primary.py",
    ),
    Mutant("helpers/statistics/primary.py", "1 - within).reset_index", "within).reset_index", "tests/statistics/test_primary.py"),
    Mutant(
        "helpers/statistics/verdicts.py",
        '.between(table["least"], table["most"])',
        '.between(table["least"], table["most"], inclusive="neither")',
        "tests/statistics/test_verdicts.py",
    ),
    Mutant(
        "helpers/statistics/verdicts.py",
        "np.sqrt(finite_mean((values - finite_mean(values)) ** 2) / (count - 1))",
        "np.sqrt(finite_mean((values - finite_mean(values)) ** 2))",
        "tests/statistics/test_verdicts.py",
    ),
    Mutant(
        "helpers/statistics/verdicts.py",
        "(high < published) if side > 0 else (low > published)",
        "(high < published) if side < 0 else (low > published)",
        "tests/statistics/test_verdicts.py",
    ),
    Mutant(
        "helpers/statistics/verdicts.py",
        "low >= -NEGLIGIBLE and high <= NEGLIGIBLE",
        "low >= -NEGLIGIBLE or high <= NEGLIGIBLE",
        "tests/statistics/test_verdicts.py",
    ),
    Mutant(
        "helpers/statistics/verdicts.py",
        'found.groupby("primary")["p"].transform(holm)',
        'found["p"].transform(holm)',
        "tests/statistics/test_verdicts.py",
    ),
    Mutant(
        "helpers/statistics/verdicts.py",
        "row.error_low > row.errs_at_most",
        "row.error_high > row.errs_at_most",
        "tests/statistics/test_verdicts.py",
    ),
    Mutant(
        "helpers/statistics/verdicts.py",
        "for table in (primary, ranking) if",
        "for table in (ranking, primary) if",
        "tests/statistics/test_verdicts.py",
    ),
    Mutant("helpers/statistics/claims.py", '!= claim["side"]:', '== claim["side"] == 0:', "tests/statistics/test_claims.py"),
    Mutant("helpers/statistics/claims.py", "> MOST_PRIMARY:", "> MOST_PRIMARY + 1:", "tests/statistics/test_claims.py"),
    Mutant(
        "helpers/statistics/claims.py", "len(measures) > MOST_MEASURES", "len(measures) >= MOST_MEASURES", "tests/statistics/test_claims.py"
    ),
    Mutant("helpers/statistics/reliability.py", "2 * r / (1 + np.abs(r))", "r", "tests/statistics/test_reliability.py"),
    Mutant("helpers/statistics/reliability.py", "(size - 1) * within", "size * within", "tests/statistics/test_reliability.py"),
    Mutant(
        "helpers/statistics/sign_error.py",
        "total**2 >= MINIMUM_SAMPLE * squares",
        "total**2 > 0 * squares",
        "tests/statistics/test_sign_error.py",
    ),
    Mutant("helpers/statistics/sign_error.py", "np.fmax(worst[rows],", "np.fmin(worst[rows],", "tests/statistics/test_sign_error.py"),
    Mutant("helpers/statistics/information.py", "np.fmin.reduce(", "np.fmax.reduce(", "tests/statistics/test_information.py"),
    Mutant(
        "helpers/statistics/tables.py",
        'models["train_accuracy"] > threshold',
        'models["train_accuracy"] >= threshold',
        "tests/statistics/test_tables.py",
    ),
    Mutant("helpers/statistics/tables.py", "picked = (1 - sign * ", "picked = (1 + sign * ", "tests/statistics/test_tables.py"),
    Mutant(
        "helpers/statistics/tables.py",
        "sign_errors(models, measures, axes, gaps, test_images=test_images)\n    if",
        "sign_errors(models, measures, axes, gaps[:1], test_images=test_images)\n    if",
        "tests/statistics/test_tables.py",
    ),
    Mutant(
        "helpers/statistics/hyperparameters.py",
        "granulated_kendall(models, names, axes)",
        "granulated_kendall(models, names, axes[:1])",
        "tests/statistics/test_hyperparameters.py",
    ),
    Mutant(
        "helpers/statistics/ranking.py",
        '"test_accuracy" if "test_accuracy" in question else "gap"',
        '"gap"',
        "tests/statistics/test_ranking.py",
    ),
    Mutant(
        "helpers/statistics/ranking.py",
        "permutation.p_values(size, away)",
        "permutation.p_values(np.abs(found.value), np.abs(null))",
        "tests/statistics/test_ranking.py",
    ),
]
MUTANTS += [
    Mutant(
        "helpers/cams/chance.py",
        "return scores[name] - scores[name + SHUFFLED]",
        "return scores[name]",
        "tests/measures/test_localization.py",
    ),
    Mutant("helpers/cams/chance.py", "argsort().unsqueeze(1) + 1 +", "argsort().unsqueeze(1) +", "tests/cams/test_chance.py"),
    Mutant("helpers/cams/chance.py", "masks = values >= threshold", "masks = values > 1 - threshold", "tests/cams/test_chance.py"),
    Mutant(
        "helpers/cams/overlap.py",
        "mask_iou(values >= threshold, inside)",
        "mask_iou(values > threshold, inside)",
        "tests/cams/test_overlap.py",
    ),
    Mutant(
        "helpers/cams/maps.py", "squares / (2 * squares + total * cubes)", "squares / (squares + total * cubes)", "tests/cams/test_maps.py"
    ),
    Mutant("helpers/cams/maps.py", "shifted = maps - maps.amin((1, 2), keepdim=True)", "shifted = maps", "tests/cams/test_maps.py"),
    Mutant("helpers/cams/detection.py", "np.maximum.accumulate(precision[:-1])", "precision[:-1]", "tests/cams/test_detection.py"),
    Mutant(
        "helpers/measures/reliance.py",
        '(greyed_hits["control"] - greyed_hits["box"]).mean()',
        '(greyed_hits["box"] - greyed_hits["control"]).mean()',
        "tests/measures/test_reliance.py",
    ),
    Mutant("helpers/measures/prediction.py", "k = len(margins) // 10", "k = len(margins) // 5", "tests/measures/test_prediction.py"),
    Mutant(
        "helpers/measures/norms.py",
        "2 * log(norms).sum() - 2 * log(margin)",
        "2 * log(norms).sum() + 2 * log(margin)",
        "tests/measures/test_norms.py",
    ),
    Mutant(
        "helpers/measures/spectral.py",
        "split.permute(0, 1, 2, 4, 6, 3, 5).flatten(2, 4)",
        "split.permute(0, 1, 2, 4, 6, 3, 5)[:, :, :, 0, 0]",
        "tests/measures/test_spectral.py",
    ),
    Mutant(
        "helpers/measures/layers.py",
        "if use.output is given[0] and use.norm is None:",
        "if use.norm is None:",
        "tests/measures/test_layers.py",
    ),
    Mutant(
        "helpers/measures/flatness.py",
        "generator, total = torch.Generator().manual_seed(seed),",
        "generator, total = torch.Generator(),",
        "tests/measures/test_flatness.py",
    ),
    Mutant(
        "helpers/measures/flatness.py",
        "gradients[name].nan_to_num().sign()",
        "-gradients[name].nan_to_num().sign()",
        "tests/measures/test_flatness.py",
    ),
    Mutant(
        "helpers/measures/response.py",
        "return float(2 * trapezoid(x - t, x))",
        "return float(trapezoid(x - t, x))",
        "tests/measures/test_response.py",
    ),
    Mutant(
        "helpers/measures/unlabelled.py",
        "(reached - round(accuracy * len(scores), 6)).abs().argmin()",
        "(reached - round(accuracy * len(scores), 6)).argmin()",
        "tests/measures/test_unlabelled.py",
    ),
    Mutant(
        "helpers/cams/masks.py",
        "salient > otsu_thresholds(salient).view(-1, 1, 1)",
        "salient >= otsu_thresholds(salient).view(-1, 1, 1)",
        "tests/cams/test_masks.py",
    ),
    Mutant("helpers/cams/chance.py", "score[:, 1:].float().nanmean(1)", "score.float().nanmean(1)", "tests/cams/test_chance.py"),
    Mutant("helpers/cams/attribution.py", "else found.sum(1).relu()", "else found.sum(1).abs()", "tests/cams/test_attribution.py"),
    Mutant("helpers/cams/detection.py", "recall = share * hits.sum() / boxes", "recall = share", "tests/cams/test_detection.py"),
]
MUTANTS += [
    Mutant(
        "helpers/training/stopping.py",
        'after["monitor_accuracy"] < before["monitor_accuracy"]',
        'after["monitor_accuracy"] > before["monitor_accuracy"]',
        "tests/training/test_stopping.py",
    ),
    Mutant(
        "helpers/training/run.py",
        "return np.sort(kept[cut:]), np.sort(kept[:cut])",
        "return np.sort(kept), np.sort(kept[:cut])",
        "tests/training/test_run.py",
    ),
    Mutant("helpers/training/run.py", "[config.seed, config.repeat, epoch]", "[config.seed, epoch]", "tests/training/test_run.py"),
    Mutant("helpers/training/run.py", "generator.integers(1, classes,", "generator.integers(0, classes,", "tests/training/test_run.py"),
    Mutant(
        "helpers/training/catalogue.py",
        'table["train_accuracy"] > minimum_train_accuracy',
        'table["train_accuracy"] >= minimum_train_accuracy',
        "tests/training/test_catalogue.py",
    ),
    Mutant(
        "helpers/kappa/statistics.py",
        "total * (n + named) - 2 * n * named",
        "total * (n + named) - n * named",
        "tests/kappa/test_statistics.py",
    ),
    Mutant(
        "helpers/kappa/statistics.py",
        "(1 - np.tensordot(orders, truth, 2) / pairs) / 2",
        "(1 + np.tensordot(orders, truth, 2) / pairs) / 2",
        "tests/kappa/test_statistics.py",
    ),
    Mutant("helpers/kappa/tradeoff.py", "1 - points[..., 1]", "points[..., 1]", "tests/kappa/test_tradeoff.py"),
    Mutant("helpers/kappa/intervals.py", "shaken - (shaken.mean(0) - still.mean(0))", "shaken", "tests/kappa/test_intervals.py"),
]
MUTANTS += [
    Mutant(
        "helpers/data/selection.py",
        '(image.record.split != "train", image.record.name)',
        '(image.record.split == "train", image.record.name)',
        "tests/data/test_images.py",
    ),
    Mutant("helpers/data/selection.py", "default_rng([seed, *words.tolist()])", "default_rng(words.tolist())", "tests/data/test_images.py"),
    Mutant("helpers/data/selection.py", "min(held, len(candidates) // 2)", "min(held, len(candidates))", "tests/data/test_images.py"),
    Mutant("helpers/data/decode.py", "int(value * size / side)", "round(value * size / side)", "tests/data/test_decode.py"),
    Mutant("helpers/data/layouts.py", "max(said.objects, key=", "min(said.objects, key=", "tests/data/test_layouts.py"),
    Mutant(
        "helpers/data/synthetic.py",
        'cue = label if split == "train" else int(generator.integers(len(CLASS_NAMES)))',
        "cue = label",
        "tests/data/test_synthetic.py",
    ),
    Mutant("helpers/networks/resnet.py", "in_channels // module.groups < _BLOCK", "in_channels < _BLOCK", "tests/networks/test_resnet.py"),
    Mutant("helpers/measures/layers.py", "if kernel is layer.weight:", "if True:", "tests/measures/test_layers.py"),
    Mutant("helpers/networks/hooks.py", "            maps.clear()", "            pass", "tests/networks/test_hooks.py"),
]
MUTANTS += [
    Mutant(
        "helpers/scoring/classification.py",
        "best[recall[:-1] >= tenth]",
        "best[recall[:-1] > tenth]",
        "tests/scoring/test_classification.py",
    ),
    Mutant(
        "helpers/scoring/classification.py",
        "classes[-1] - labels, logits[:, ::-1], k=5",
        "labels, logits, k=5",
        "tests/scoring/test_classification.py",
    ),
    Mutant("helpers/scoring/scoring_set.py", "set.intersection(*fitted)", "set.union(*fitted)", "tests/scoring/test_models.py"),
    Mutant(
        "helpers/scoring/scoring_set.py",
        "np.random.default_rng(int.from_bytes(_digest(data.fingerprint)))",
        "np.random.default_rng()",
        "tests/scoring/test_models.py",
    ),
    Mutant("helpers/scoring/targets.py", 'rule3_split == "holdout"', 'rule3_split != "holdout"', "tests/scoring/test_targets.py"),
    Mutant("helpers/ablations/compute.py", "found[:, ~inside.flatten(1).any(1)]", "found[:, :0]", "tests/ablations/test_compute.py"),
    Mutant("helpers/ablations/tables.py", 'table["r"] * gap["shift"]', '-table["r"] * gap["shift"]', "tests/ablations/test_tables.py"),
    Mutant("helpers/ablations/tables.py", "PAPER_NETWORKS) - 3)", "PAPER_NETWORKS))", "tests/ablations/test_tables.py"),
    Mutant(
        "helpers/report/answers.py",
        'return -1 if row[f"{question}_high"] < 0',
        'return -1 if row[f"{question}_low"] < 0',
        "tests/report/test_answers.py",
    ),
    Mutant(
        "helpers/report/answers.py",
        'drop_duplicates("run_id", keep="last")',
        'drop_duplicates("run_id", keep="first")',
        "tests/report/test_answers.py",
    ),
    Mutant("helpers/report/explore/cuts.py", "mask = values >= limits", "mask = values > limits", "tests/report/test_explore.py"),
    Mutant("helpers/report/figures.py", "<= most - claimed.sum()", "<= most", "tests/report/test_figures.py"),
    Mutant(
        "helpers/report/captions.py",
        'known.sort_values("error_with").iloc[0]',
        'known.sort_values("error_with").iloc[-1]',
        "tests/report/test_figures.py",
    ),
]
MUTANTS += [
    Mutant("helpers/select/prediction.py", "rest = models.drop(inside.index)", "rest = models", "tests/select/test_prediction.py"),
    Mutant("helpers/select/prediction.py", "level * (configurations + 1) / configurations", "level", "tests/select/test_prediction.py"),
    Mutant("helpers/select/prediction.py", "common + (1 - common) * np.eye(len(p))", "np.eye(len(p))", "tests/select/test_prediction.py"),
    Mutant("helpers/select/prediction.py", "return p + gain @ miss", "return p - gain @ miss", "tests/select/test_prediction.py"),
    Mutant("helpers/select/prediction.py", "ppf(trusted, len(p))", "ppf(1.0, len(p))", "tests/select/test_prediction.py"),
    Mutant(
        "helpers/select/judging.py",
        '(table["accuracy"] - table["accuracy"].iloc[0]) / np.hypot',
        '(table["accuracy"].iloc[0] - table["accuracy"]) / np.hypot',
        "tests/select/test_judging.py",
    ),
    Mutant(
        "helpers/select/calibration.py",
        'models=self.models[~self.models["cell"].isin(cells)]',
        'models=self.models[~self.models["run_id"].isin(run_ids)]',
        "tests/select/test_calibration.py",
    ),
    Mutant("helpers/select/images.py", "if len(own.train) < own.scored_on.shared:", "if False:", "tests/select/test_images.py"),
    Mutant("helpers/files.py", "path.is_relative_to(folder) or path == folder", "path.is_relative_to(folder)", "tests/test_files.py"),
    Mutant("helpers/parameters.py", '(item == low and limit[0] == "[")', "item == low", "tests/test_parameters.py"),
    Mutant("helpers/sweep/study.py", "sound = all(digest_of", "sound = any(digest_of", "tests/sweep/test_study.py"),
    Mutant("helpers/sweep/study.py", "stem[:2] >= JUDGING", "stem[:2] > JUDGING", "tests/sweep/test_study.py"),
    Mutant("helpers/sweep/relations.py", "added / (seen + added)", "added / seen", "tests/sweep/test_study.py"),
]


def fate(mutant: Mutant, project: Path) -> str:
    """Say "killed", "SURVIVED", or why the mutant cannot be made."""
    path = project / mutant.file
    source = path.read_text()
    if source.count(mutant.old) != 1:
        return f"NOT MADE: {source.count(mutant.old)} places in the file"
    if tested(mutant.tests, project):
        return "NOT MADE: its tests fail without it"
    path.write_text(source.replace(mutant.old, mutant.new))
    try:
        ended = tested.__wrapped__(mutant.tests, project)
    finally:
        path.write_text(source)
    return {0: "SURVIVED", 1: "killed"}.get(ended, f"NOT RUN: pytest ended with {ended}")


@cache
def tested(tests: str, project: Path) -> int:
    """What pytest ends with: 0 where all pass, 1 where one fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests.split()]
    return subprocess.run(command, cwd=project, env=os.environ | {"PYTHONPATH": str(project)}, capture_output=True).returncode


def main() -> int:
    """Make every mutant whose file or text holds one of the given words, and print a table."""
    wanted = [mutant for mutant in MUTANTS if not sys.argv[1:] or any(word in str(mutant) for word in sys.argv[1:])]
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        left_out = {".git", ".venv", "work", "reports", ".snakemake", "data"}  # at the top: helpers and tests have a folder data too
        shutil.copytree(ROOT, project, ignore=lambda folder, names: left_out & {*names} if Path(folder) == ROOT else [], symlinks=True)
        print("| file | fault | fate |\n|---|---|---|")
        fates = []
        for mutant in wanted:
            fates.append(fate(mutant, project))
            change = f"`{' '.join(mutant.old.split())}` → `{' '.join(mutant.new.split())}`".replace("|", "\\|")
            print(f"| {mutant.file.removeprefix('helpers/')} | {change} | {fates[-1]} |", flush=True)
    killed = fates.count("killed")
    print(f"\n{killed} of {len(fates)} killed")
    return int(killed < len(fates))


if __name__ == "__main__":
    sys.exit(main())
