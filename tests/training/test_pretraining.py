"""The recipe by which starts are made where none are published."""

from helpers.training import pretraining
from helpers.training.config import RunConfig


def test_starts_are_trained_by_one_recipe_for_each_architecture():
    fixed = {"stem": "small", "width": 0.5, "max_epochs": 7, "data": "others"}
    runs = pretraining.recipes(["resnet18", "resnet34"], "images", fixed)
    assert runs == [
        RunConfig(
            architecture=architecture,
            batch_size=64,
            learning_rate=0.001,
            optimizer="adam",
            weight_decay=0.0005,
            augmentation=True,
            pretrained=False,
            data="images",
            stem="small",
            width=0.5,
            max_epochs=7,
        )
        for architecture in ("resnet18", "resnet34")
    ]
