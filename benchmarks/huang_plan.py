"""What huang100 would take on one GPU: ``python -m benchmarks.huang_plan > docs/huang100.md``."""

import yaml

from helpers.files import PROJECT_ROOT
from helpers.kappa import cost


def main() -> None:
    """Print the page."""
    study = yaml.safe_load((PROJECT_ROOT / "params/huang100.yaml").read_text())
    notebooks = study["notebooks"]
    images = notebooks["01_data_subset"]
    kappa = notebooks["06_kappa_tradeoff"]
    classes = len(images["class_ids"])
    train = images["images_per_class"] * classes
    test = images["test_images_per_class"] * classes
    levels = len(kappa["noise_ssim"])
    table = cost.costs(images | kappa, train, test, classes, cost.GPU_SPEED)
    minutes = table[["training, min", "features, min", "complexity, min"]].sum().sum()
    print(
        f"# What huang100 would take\n\n{len(table)} networks: "
        f"{train + test * levels:,} images each, of {classes} classes, pass once "
        f"({train:,} to fit probes, {test:,} test images at {levels} levels of noise). "
        f"Made networks are trained for {kappa['made_epochs']} epochs at most.\n\n"
        "**Nothing here was timed on a GPU.** Counted are the operations of a forward "
        "pass; a training step is taken as three, and all in float32 at "
        f"{cost.GPU_SPEED / 1e12:.0f} tera-operations/s, 30 % of what the maker states "
        "for an H100. EfficientNets reach less, since memory bounds their depthwise "
        "convolutions. Noise, probes and intervals run beside it on the processor. "
        "This page is what `python -m benchmarks.huang_plan` prints.\n"
    )
    print("| " + " | ".join(table.columns) + " |\n|" + "---|" * len(table.columns))
    for row in table.itertuples(index=False):
        values = [
            f"{value:,.3g}" if isinstance(value, float) else str(value) for value in row
        ]
        print("| " + " | ".join(values) + " |")
    print(
        f"\nTogether {minutes / 60:.1f} hours of one GPU, and {table['GB kept'].sum():.0f} "
        "GB of features in `work/huang100/kept`."
    )


if __name__ == "__main__":
    main()
