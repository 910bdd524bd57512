"""The reason why a value cannot be had."""


class Undefined(ValueError):
    """The reason why a value cannot be had of a network or of images.

    It stands beside the NaN in tables. Any other error stops what computes the value.
    """
