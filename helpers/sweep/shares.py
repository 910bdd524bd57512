"""Shares of notebooks' work for several GPUs, if the study file has no shares."""

from dataclasses import replace

from helpers.sweep.study import CheckedStudy, Execution, split_into_shares


def with_shares(study: CheckedStudy, count: int) -> CheckedStudy:
    """Split each notebook that can be split, and that uses a GPU, into equal shares.

    Args:
        study: as its file has it. What its ``sweep`` block splits stays as it is.
        count: number of GPUs; below 2 nothing is split.

    Returns:
        The study with the shares of a notebook before the notebook itself, which joins
        what they have trained or scored.
    """
    if count < 2:
        return study
    split = {item.notebook for item in study.executions if item.part}
    executions: list[Execution] = []
    for item in study.executions:
        whole = item.is_whole and item.notebook not in split
        on_gpu = item.parameters.get("device", "cpu") != "cpu"
        if whole and on_gpu and item.parameters.get("shard") == "":
            executions += split_into_shares(item, count)
        else:
            executions.append(item)
    return replace(study, executions=executions)
