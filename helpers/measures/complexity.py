"""Complexities of Jiang et al. 2020: functions of norms, scaled by training images."""

import inspect
import math
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from helpers.measures.registry import measure, needs

# Which linear map a spectral norm is of: the layer at the size of its own input; its
# weight reshaped to a (c_out, rest) matrix; its kernel without stride and dilation at
# the size of the network's input, by Fourier transform.
NORM_VARIANTS = ("operator", "reshaped", "fft")
# Arguments that map each of NORM_VARIANTS to the norms of all layers.
_BY_VARIANT = {"spectral_norms", "spectral_distances"}


def complexity(
    family: str, source: str, title: str, is_logarithm: bool = False
) -> Callable[..., Any]:
    """Enter a complexity into the list of measures; larger promises a larger gap.

    The decorated function returns ``v`` or ``ln v``; the measure is its
    ``scaled_complexity``. A function that takes spectral norms is called once for each
    of ``NORM_VARIANTS``.

    Args:
        family: of ``registry.FAMILIES``.
        source: equation of Jiang et al. 2020, as a number, or name in the code of
            Dziugaite et al. 2020.
        title: label for figures.
        is_logarithm: whether the function gives ``ln v``.

    Returns:
        The decorator, which turns the function into the measure.
    """
    paper = "Dziugaite et al. 2020 (code), "
    if source.isdigit():
        paper = "Jiang et al. 2020, equation "

    def decorate(raw: Callable[..., float]) -> Callable[..., Any]:
        variants = NORM_VARIANTS if _BY_VARIANT & set(needs(raw)) else ()

        @wraps(raw)
        def scaled(training_images: int, **values: Any) -> Any:
            if "training_images" in needs(raw):
                values["training_images"] = training_images
            if not variants:
                return scaled_complexity(
                    float(raw(**values)), training_images, is_logarithm
                )
            return {
                variant: scaled_complexity(
                    float(raw(**_select_variant(values, variant))),
                    training_images,
                    is_logarithm,
                )
                for variant in variants
            }

        arguments = dict(inspect.signature(raw).parameters)
        arguments.setdefault(
            "training_images",
            inspect.Parameter("training_images", inspect.Parameter.KEYWORD_ONLY),
        )
        # What the measure asks for, see ``registry.needs``.
        scaled.__signature__ = inspect.Signature(list(arguments.values()))
        enters = measure(family, -1, paper + source, title=title, variants=variants)
        return enters(scaled)

    return decorate


def _select_variant(values: Mapping[str, Any], variant: str) -> dict[str, Any]:
    """Arguments of a complexity, with the spectral norms of one variant."""
    return {
        name: value[variant] if name in _BY_VARIANT else value
        for name, value in values.items()
    }


def scaled_complexity(value: float, images: int, is_logarithm: bool = False) -> float:
    """Scale a complexity as Dziugaite et al. 2020 (code) report it.

    Args:
        value: ``v``, or ``ln v``.
        images: number m of training images.
        is_logarithm: whether the value is ``ln v``.

    Returns:
        ``sqrt(v / m)``, NaN for a negative v; of a logarithm ``ln sqrt(v / m)``.

    Example:
        >>> scaled_complexity(400.0, 100)
        2.0
    """
    if is_logarithm:
        return float(0.5 * (value - math.log(images)))
    return math.sqrt(value / images) if value >= 0 else math.nan
