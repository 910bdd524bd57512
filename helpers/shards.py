"""Equal parts of a list, named "i/n": what one of n executions, or one of n machines, takes."""

import re

_FORM = re.compile(r"(\d+)/(\d+)")


def shard_slice(shard: str) -> slice:
    """Turn "2/4" into the slice that takes every fourth item from the second on; "" and "1/1" take all.

    The parts of a list are disjoint, together they are the list, and their lengths differ by one at most. A slice serves lists
    (``runs[shard_slice(shard)]``) and tables (``table.iloc[shard_slice(shard)]``).

    Raises:
        ValueError: the text is no i/n with 1 <= i <= n.
    """
    if not shard:
        return slice(None)
    match = _FORM.fullmatch(shard)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"the shard is {shard!r}; write i/n with i from 1 to n, such as 2/4")
    return slice(int(match[1]) - 1, None, int(match[2]))
