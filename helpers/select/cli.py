"""Rank checkpoints by the gap that a study predicts of them: ``python -m helpers.select CHECKPOINTS IMAGES``."""

import argparse
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

DESCRIPTION = """Score every checkpoint of a folder on its training images, and rank them by the generalization gap that a study of this
repository predicts, with an interval and the probability that each truly has the smallest. Nothing is trained, no test image is needed,
and no code from a checkpoint is run."""


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser(prog="python -m helpers.select", description=DESCRIPTION)
    made.add_argument("checkpoints", type=Path, help="folder of .safetensors, .pt, .pth or .ckpt files with state dicts, or one such file")
    made.add_argument("images", type=Path, help="folder or .zip of training images, best with one folder per class")
    made.add_argument("--architecture", default="auto", help="torchvision's name, timm:NAME or module:function; auto tells ResNets apart")
    made.add_argument("--boxes", type=Path, help="CSV like LOC_train_solution.csv, or a folder of Pascal VOC XML (else: beside the images)")
    made.add_argument("--classes", type=Path, help="text file with the name of a class folder per line, in the order of the outputs")
    made.add_argument("--target", type=Path, help="folder or .zip of images without labels of where the networks will work")
    made.add_argument("--labelled", type=Path, help="folder or .zip of held-out images, a folder per class; as few as 50 set the level")
    made.add_argument("--image-size", type=int, default=0, help="side of the square images, pixels; 0: that of the files, 224 at most")
    made.add_argument("--images-used", type=int, default=0, help="images to take; 0: as many as the minutes allow, 200 at most")
    made.add_argument("--minutes", type=float, default=5.0, help="time for the scoring, where --images-used is 0 (default 5)")
    made.add_argument("--mean", type=float, nargs=3, default=[0.485, 0.456, 0.406], help="of the normalisation in training, RGB in [0, 1]")
    made.add_argument("--std", type=float, nargs=3, default=[0.229, 0.224, 0.225], help="of the normalisation in training")
    made.add_argument("--study", default="", help="study under --reports that calibrates; default: the first with all measures")
    made.add_argument("--reports", default="reports", help="folder of the studies' reports, relative to the project's root")
    made.add_argument("--level", type=float, default=0.8, help="of the intervals (default 0.8)")
    made.add_argument("--seed", type=int, default=0, help="of the choice of images and of the bootstrap")
    made.add_argument("--device", default="auto", help="cpu, cuda or auto")
    made.add_argument("--out", type=Path, default=Path("own"), help="folder for tables, cards and figures (default ./own)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 when checkpoints were judged, 1 when none could be, 2 when an argument is wrong, 130 when interrupted."""
    given = parser().parse_args(arguments)
    try:
        if faults := list(wrong_arguments(given)):
            raise ValueError("; ".join(faults))
        return rank_checkpoints(given)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that nothing is flushed into what is closed
        return 2
    except (ValueError, OSError) as fault:
        print(f"{parser().prog}: {_plain(fault)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{parser().prog}: interrupted; nothing was ranked", file=sys.stderr)
        return 130


def wrong_arguments(given: argparse.Namespace) -> Iterator[str]:
    """List what is wrong with the arguments, as far as that can be known without reading a file or importing torch."""
    folders = [("images", given.images), ("--target", given.target), ("--labelled", given.labelled)]
    places = [("checkpoints", given.checkpoints), *folders, ("--boxes", given.boxes), ("--classes", given.classes)]
    for name, path in places:
        if path is not None and not (path.is_file() or path.is_dir()):
            yield f"{name} {path} {'is no file and no folder' if path.exists() else 'does not exist'}"
    for name, path in folders:
        if path is not None and path.is_file() and path.suffix.lower() != ".zip":
            yield f"{name} {path} is a file; give a folder or a .zip"
        elif path is not None and path.is_dir() and not any(path.iterdir()):
            yield f"{name} {path} is empty; give a folder of images"
    if given.classes is not None and given.classes.is_dir():
        yield f"--classes {given.classes} is a folder; give a text file with a class folder per line"
    parts = [part for part in (given.out, *given.out.absolute().parents) if part.exists()]
    if not parts[0].is_dir() or not os.access(parts[0], os.W_OK):
        yield f"--out {given.out} cannot be written: {parts[0]} is {'not writable' if parts[0].is_dir() else 'a file'}; give a folder"
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", given.device):
        yield f"--device {given.device} is unknown; choose auto, cpu, cuda or cuda:0"
    if not 0 < given.level < 1:
        yield f"--level {given.level} must be between 0 and 1, both excluded"
    if given.image_size and not 8 <= given.image_size <= 1024:
        yield f"--image-size {given.image_size} must be from 8 to 1024 pixels, or 0 for that of the files"
    if given.images_used < 0 or not 0 < given.minutes < math.inf:
        yield f"--images-used {given.images_used} must be at least 0 and --minutes {given.minutes} above 0 and finite"
    if not 0 <= given.seed < 2**32:
        yield f"--seed {given.seed} must be from 0 to 2**32 - 1"


def rank_checkpoints(given: argparse.Namespace) -> int:
    """Score, rank, write and print. Raises ValueError or FileNotFoundError for arguments that cannot be."""
    from helpers.files import from_root
    from helpers.measures import evidence
    from helpers.select import calibration, case, ranking, scores
    from helpers.select.target import predict_on_target
    from helpers.training import pool

    started = time.perf_counter()
    reports = from_root(given.reports)
    known = calibration.studies(reports)
    name = given.study or (known[0] if known else "demo")
    study, targets = calibration.read_calibration(reports, name), calibration.read_targets(reports, name) if given.target else None
    device, normalise = _device(pool.choose_device(given.device)), scores.normaliser(given.mean, given.std)
    of_user = _of_user(given, study, targets)
    judged = of_user(images=given.images_used or 200)
    plan = _plan(given, judged, device)
    if plan.images < len(judged.images):
        judged = of_user(images=plan.images)
    given.out.mkdir(parents=True, exist_ok=True)  # before the work, so that nothing is scored that cannot be written
    files, images = sum(not candidate.passed_over for candidate in judged.candidates), judged.images
    size = images.images.shape[-1]
    print(f"{files} checkpoints, {len(images)} of {images.found} images at {size} px, study {study.study}, {device}", flush=True)
    if not plan.extra:
        print("measures with passes of their own are left out to keep to the time; give more --minutes for them")
    wanted = {name: study.setting(name, default) for name, default in (("cam_method", "grad_cam"), ("cam_threshold", 0.1))}
    settings = evidence.MeasureSettings(**wanted, perturbation_fraction=0.25, seed=given.seed)
    scored = []
    options = {"met": judged.met, "extra": plan.extra, "normalise": normalise, "device": device}
    for item in scores.score_checkpoints(judged.candidates, images, settings, **options):
        scored.append(item)
        told = f"{_plain(item.facts['checkpoint'])}  {_plain(item.facts['fault'])}"
        print(f"[{len(scored)}/{len(judged.candidates)}] {time.perf_counter() - started:4.0f} s  {told}", flush=True)
    facts, values = scores.score_tables(scored)
    own, met = scores.wide(values, facts["checkpoint"]), scores.scores_met(scored, judged.labelled, settings)
    apart = case.differences_of(judged, facts)
    differing = calibration.differing(apart)
    least = float(study.setting("minimum_train_accuracy", 0.8))
    wanted = {"differing": differing, "right": met.right, "level": given.level, "seed": given.seed}
    verdict = ranking.rank(study, own, facts, images=len(images), minimum_train_accuracy=least, **wanted)
    options = {"differing": differing, "unfit": verdict.unfit, "level": given.level}
    target = predict_on_target(targets, met, **options) if met.on_target is not None else None
    _write(given, judged, verdict, target, own, facts, values, apart)
    _print(verdict, target, given, time.perf_counter() - started)
    return 0 if verdict.ranking["verdict"].isin([ranking.RANKED, ranking.JUDGED]).any() else 1


def _device(device: str) -> str:
    import torch

    if device.startswith("cuda:") and int(device[5:]) >= torch.cuda.device_count():
        raise ValueError(f"--device {device} is not there: torch sees {torch.cuda.device_count()} GPUs")
    return device


def _classes(path: Path | None) -> list[str]:
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()] if path else []
    except UnicodeDecodeError as fault:
        raise ValueError(
            f"--classes {path} is no text in UTF-8 (byte {fault.start:,}); save it as UTF-8, a class folder per line"
        ) from fault


def _of_user(given: argparse.Namespace, study: Any, targets: Any) -> Any:
    """The case of the arguments, but for the number of images."""
    from helpers.select import case

    # From where the command is called, not from the project's root.
    paths = {f"{name}_path": str(path.absolute()) if (path := getattr(given, name)) else "" for name in ("boxes", "target", "labelled")}
    own = {"architecture": given.architecture, "class_names": _classes(given.classes), "image_size": given.image_size, "seed": given.seed}
    return partial(case.of_user, study, str(given.checkpoints.absolute()), str(given.images.absolute()), targets=targets, **paths, **own)


def _plan(given: argparse.Namespace, judged: Any, device: str) -> Any:
    from helpers.select import scores

    if given.images_used:
        return scores.Plan(given.images_used, True)
    pace = scores.pace(judged.candidates, judged.images, device)
    checkpoints, beside = sum(not each.passed_over for each in judged.candidates), sum(len(each) for each in judged.met.values() if each)
    return scores.plan(pace, checkpoints, given.minutes, len(judged.images), beside)


def _write(given: argparse.Namespace, judged: Any, verdict: Any, target: Any, own: Any, facts: Any, scores: Any, apart: Any) -> None:
    from helpers.files import complete_or_absent
    from helpers.measures import registry
    from helpers.select import cards, report

    study, images = judged.study, judged.images

    distance = report.say_distance(apart, verdict.measured, verdict.used)
    titles = dict(registry.columns()[["column", "title"]].to_numpy().tolist())
    sentences = [
        report.say_first(verdict, given.level),
        report.images_found(images),
        report.checkpoints_scored(facts, scores),
        report.say_calibration(verdict, study.study, titles),
        distance,
    ]
    tables, figures = {}, {}
    if target is not None:
        sentences.insert(0, report.say_target(target, judged.target, given.level, titles))
        tables = {"own_target": target.table, "own_target_ranges": target.measured}
        figures = {"own_target": report.target_figure(target, given.level, titles)}
    sentences.append(report.say_labels(verdict.labels, *([target.labels] if target else []), titles=titles))
    tables |= {
        "own_ranking": verdict.ranking,
        "own_scores": scores,
        "own_distance": apart,
        "own_ranges": verdict.measured,
        "own_faults": images.faults,
    }
    for name, table in tables.items():
        with complete_or_absent(given.out / f"{name}.csv") as temporary:
            table.to_csv(temporary, index=False, errors="backslashreplace")
    with complete_or_absent(given.out / "README.md") as temporary:
        temporary.write_text("# Your own checkpoints\n\n" + "\n\n".join(sentences) + "\n", encoding="utf-8", errors="backslashreplace")
    given_cards = {"study": study.study, "level": given.level, "distance": distance, "target": target}
    cards.write_cards(given.out / "cards", verdict, scores, images, **given_cards)
    chosen = list(verdict.chosen)
    figures |= {
        "own_ranking": report.checkpoints_figure(verdict.ranking, given.level),
        "own_among_the_study": report.among_the_study(study.models, own, verdict.ranking, chosen, titles),
    }
    for name, figure in figures.items():
        with complete_or_absent(given.out / f"{name}.png") as temporary:
            figure.savefig(temporary, format="png", dpi=90, bbox_inches="tight", facecolor="white")
    print("\n" + "\n\n".join(_plain(text) for text in sentences).replace("**", "").replace("`", ""))


def _print(verdict: Any, target: Any, given: argparse.Namespace, seconds: float) -> None:
    from helpers.report.style import percent, points

    print(f"\n{'rank':>11}  {'gap':>14}  {'interval (points)':>20}  {'best':>9}  checkpoint")
    for row in verdict.ranking.itertuples():
        rank = f"{row.rank:.0f}" if row.rank == row.rank else row.verdict
        if row.predicted_gap != row.predicted_gap and row.rank != row.rank:
            print(f"{rank:>11}  {_plain(row.checkpoint)}  ({_plain(row.note)})")
            continue
        span = f"{100 * row.gap_low:.1f} to {100 * row.gap_high:.1f}" if row.gap_low == row.gap_low else "undefined"
        print(f"{rank:>11}  {points(row.predicted_gap):>14}  {span:>20}  {percent(row.probability_best):>9}  {_plain(row.checkpoint)}")
    if target is not None:
        print(f"\n{'rank':>11}  {'on the target':>14}  {'interval':>20}  checkpoint")
    for row in target.table.itertuples() if target is not None else ():
        span = f"{percent(row.accuracy_low)} to {percent(row.accuracy_high)}" if row.accuracy_low == row.accuracy_low else "undefined"
        rank = f"{row.rank:.0f}" if row.rank == row.rank else ""
        print(f"{rank:>11}  {percent(row.predicted_accuracy):>14}  {span:>20}  {_plain(row.checkpoint)}  {_plain(row.note)}")
    print(f"\n{seconds:.0f} s; tables, figures and a card per checkpoint are in {_plain(given.out)}")


def _plain(text: object) -> str:
    """Write a name that comes from a file on one line, without signs that a terminal would obey."""
    return "".join(sign if sign.isprintable() else "?" for sign in str(text))
