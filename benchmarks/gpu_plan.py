"""What imagenet20 would take on one H100 or H200 and on eight, by a cost model: ``python -m benchmarks.gpu_plan > docs/imagenet20.md``.

Nothing is timed. Counted are the floating-point operations of a forward pass and the bytes that autograd keeps of it; assumed is how fast
a GPU works through them.
"""

import textwrap
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch.utils.flop_counter import FlopCounterMode

from helpers.files import PROJECT_ROOT
from helpers.networks import resnet
from helpers.sweep import cost
from helpers.sweep.study_file import load_study
from helpers.training.config import RunConfig

TERABYTES = {"H100": 3.35, "H200": 4.8}  # per second, of memory, as the makers state for the SXM form
BFLOAT16, FLOAT32 = 989, 67  # tera-operations per second, dense, as they state
COMPUTE, PLAIN, MEMORY = 0.2, 0.5, 0.3  # shares of these that are reached: in bfloat16, in float32, of memory
# NVIDIA's own trainer (MXNet, tuned): 90 epochs of ImageNet with ResNet50 in 8.75 hours on one A100 of 80 GB.
KNOWN_HOURS, KNOWN_IMAGES, KNOWN_TERABYTES = 8.75, 90 * 1_281_167, 2.04
TRAFFIC = 6  # times that a kept activation is read or written in a training step; 2 in a pass
KERNELS, LAUNCH = 5, 4e-6  # per called layer of a training step; seconds that each takes at least in a recorded step
STAGES = ("03", "04", "05")
EPOCHS = 30  # of a mean run, if the stop rules end runs as early as that; the cap is in the study


class Work(NamedTuple):
    """What one image costs a network."""

    operations: float  # of a forward pass
    kept: float  # bytes of activations in float32
    layers: int  # called


def counted(architecture: str, classes: int, size: int) -> Work:
    """Count the work of a network on one image."""
    network = resnet.build(architecture, classes, seed=0)
    images = torch.zeros(2, 3, size, size, dtype=torch.uint8)
    kept = cost.activation_bytes(network, images) / 2
    network.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(resnet.normalise_images(images[:1]))
    return Work(counter.get_total_flops(), kept, sum(1 for module in network.modules() if not any(module.children())))


def train_seconds(work: Work, batch: int, terabytes: float) -> float:
    """Seconds for an image of a training step in bfloat16: the slower of arithmetic, memory, and the launching of kernels."""
    arithmetic = 3 * work.operations / (COMPUTE * BFLOAT16 * 1e12)
    memory = TRAFFIC * work.kept / 2 / (MEMORY * terabytes * 1e12)
    return max(arithmetic, memory, work.layers * KERNELS * LAUNCH / batch)


def pass_seconds(work: Work, terabytes: float) -> float:
    """Seconds for an image of a forward pass in float32, in large batches."""
    return max(work.operations / (PLAIN * FLOAT32 * 1e12), 2 * work.kept / (MEMORY * terabytes * 1e12))


def image_passes(parameters: dict[str, dict[str, Any]], train: int, test: int, classes: int) -> dict[str, float]:
    """Images that pass through one model in each notebook, a backward pass counted as two; the untrained networks of 05 apart."""
    of_04, of_05 = parameters["04_baselines"], parameters["05_robustness_ablations"]
    perturbed = of_04["perturbation_fraction"] * train
    searches = of_04["flatness_halvings"] * (
        4 * of_04["flatness_images"] * of_04["flatness_draws"] + 3 * 4 * of_04["sharpness_images"] * of_04["sharpness_steps"]
    )
    curves = perturbed * (8 * of_04["perturbation_points"] + 4) + 2 * 200 * classes
    noise = 3 * (1 + of_05["noise_samples"])
    maps = 2 * 3 + 2 * noise + 1 + 1 + of_05["score_cam_channels"] + 4 * 2 * 3 + sum(scale**2 for scale in of_05["image_scales"])
    attributed = 3 + 3 + 3 * of_05["attribution_steps"] + 6 + 50 + 8
    return {
        "03": train + test,
        "04": 4 * train + curves + searches + test * (4 + 1 + len(of_04["targets"])),
        "05": train + of_05["ablation_images"] * (maps + attributed),
    }


def hours(
    name: str, runs: list[RunConfig], works: dict[str, Work], counts: cost.Counts, cap: int, passes: dict[str, float]
) -> pd.DataFrame:
    """GPU hours of each stage on one GPU of a kind."""
    speed, rows = TERABYTES[name], []
    for architecture, work in works.items():
        own = [run for run in runs if run.architecture == architecture]
        epochs = sum(counts.train * train_seconds(work, run.batch_size, speed) + counts.test * pass_seconds(work, speed) for run in own)
        row = {"GPU": name, "network": architecture, "runs": len(own)}
        row |= {f"images/s, batch {batch}": round(1 / train_seconds(work, batch, speed), -1) for batch in (16, 64)}
        row |= {f"training, {EPOCHS} epochs": EPOCHS * epochs / 3600, f"training, {cap} epochs": cap * epochs / 3600}
        models = 2 * len(own)
        row |= {stage: models * images * pass_seconds(work, speed) / 3600 for stage, images in passes.items()}
        rows.append(row)
    return pd.DataFrame(rows)


def told(runs: int, counts: cost.Counts, works: dict[str, Work], both: dict[str, Any]) -> list[str]:
    """Say what is planned, what is counted, and what is assumed."""
    moved = TRAFFIC * works["resnet50"].kept / 2
    known = KNOWN_IMAGES / KNOWN_HOURS / 3600
    speeds = " and ".join(f"{speed} TB/s ({name})" for name, speed in TERABYTES.items())
    return [
        f"{runs:,} runs of at most {both['max_epochs']} epochs, up to {2 * runs:,} snapshots, on {counts.train:,} training and "
        f"{counts.test:,} test images of {both['image_size']} px in {counts.classes} classes ({counts.source}).",
        "**Nothing here was timed on a GPU**: none was at hand. This page is what `python -m benchmarks.gpu_plan` prints, from a cost "
        "model. On the machine itself `python -m helpers.sweep params/imagenet20.yaml --plan` times the steps, and is what to trust.",
        "Counted: the operations of a forward pass, the bytes that autograd keeps of it, and the layers called. Assumed: a training "
        f"step does the arithmetic of three passes at {COMPUTE:.0%} of {BFLOAT16} tera-operations/s in bfloat16, or moves each kept byte "
        f"{TRAFFIC} times at {MEMORY:.0%} of {speeds}, or launches {KERNELS} kernels a layer of {LAUNCH * 1e6:.0f} µs, whichever is "
        f"slowest; a scoring pass is in float32, at {PLAIN:.0%} of {FLOAT32} tera-operations/s. Hours scale with these shares.",
        f"Held against one published measurement: NVIDIA's tuned MXNet trainer passes {known:,.0f} images/s of ResNet50 on an A100 of "
        f"80 GB ({KNOWN_HOURS} hours for 90 epochs of ImageNet), which is {known * moved / KNOWN_TERABYTES / 1e12:.0%} of its memory by "
        f"this model; PyTorch fuses less, so {MEMORY:.0%} is taken.",
        f"How many epochs the stop rules leave is not known: {EPOCHS} is a guess, {both['max_epochs']} the cap. GPU hours:",
    ]


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print a table of Markdown, numbers of more than ten without decimals."""
    print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        cells = [value if isinstance(value, str) else f"{value:,.1f}" if 0 < value < 10 else f"{value:,.0f}" for value in row.values()]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    """Print the page."""
    executions = load_study(PROJECT_ROOT / "params/imagenet20.yaml", PROJECT_ROOT / "notebooks")
    parameters = {item.name: dict(item.parameters) for item in executions}
    both = parameters["01_data_subset"] | parameters["02_grid_training"]
    runs, counts = cost.planned_runs(both, "bfloat16"), cost.image_counts(both)
    works = {name: counted(name, counts.classes, both["image_size"]) for name in both["architectures"]}
    passes = image_passes(parameters, counts.train, counts.test, counts.classes)
    tables = {name: hours(name, runs, works, counts, both["max_epochs"], passes) for name in TERABYTES}
    print("# What imagenet20 would take\n")
    for paragraph in told(len(runs), counts, works, both):
        print(textwrap.fill(paragraph, 140) + "\n")
    print_table([row for table in tables.values() for row in table.to_dict("records")])
    untrained = parameters["05_robustness_ablations"]["random_networks"] * (counts.train + counts.test)
    rows = []
    for name, table in tables.items():
        sums = table.drop(columns=["GPU", "network"]).sum()
        scoring = sums[list(STAGES)].sum() + untrained * sum(pass_seconds(work, TERABYTES[name]) for work in works.values()) / 3600
        guess, most = (float(sums[f"training, {epochs} epochs"]) for epochs in (EPOCHS, both["max_epochs"]))
        for number in (1, 8):
            spent = {"hours of training, guess": guess, "at most": most, "hours of 03 to 05": float(scoring)}
            row = {"GPU": name, "number": str(number)} | {label: value / number for label, value in spent.items()}
            rows.append(row | {"days, guess": (guess + scoring) / number / 24, "days, at most": (most + scoring) / number / 24})
    print()
    print_table(rows)
    last = "Eight GPUs are taken to be eight times as fast: runs and models do not wait for one another. Two runs that share a GPU are not "
    last += "taken to speed up. 01, 06 and 07, the masks of 05 and the tables are left out: they run on the processor, or for minutes."
    print("\n" + textwrap.fill(last, 140))


if __name__ == "__main__":
    main()
