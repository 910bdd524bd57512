# A study: snakemake --cores all --config study=demo
# A sweep: snakemake --cores all --config study=kinds20 vary="03_cam_scoring.cam_threshold=0.1,0.2"
# Other values: set="device=cpu 03_cam_scoring.pictured_images=3"
import os
import shlex
import signal
import sys
from functools import cache

import psutil

sys.path.insert(0, workflow.basedir)
# Jobs and kernels take the modules of this clone, whatever the environment has.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [workflow.basedir, os.environ.get("PYTHONPATH")]))
from helpers.parameters import StudyError
from helpers.files import PROJECT_ROOT, STUDY_FILE
from helpers.studies import depends, from_records, load, modules_behind, path_of


def words(value):  # a list, or a text without blanks in its words
    return value if isinstance(value, list) else shlex.split(str(value or ""))


overrides, variations = words(config.get("set")), words(config.get("vary"))
name = str(config.get("study", "demo"))
os.environ[STUDY_FILE] = str(path_of(name))
try:
    study = load(name, overrides, variations)
except StudyError as faults:
    sys.exit(f"nothing was run:\n{faults}")
study = from_records(study, only_combinations=bool(variations) and not overrides)
cards = len([*Path("/dev").glob("nvidia[0-9]*")])


def done(name):
    return f"{study.work}/done/{study.name}/{name}"


def quarters(item):  # of a GPU: one for small networks, all of it for others
    device = item.parameters.get("device", "cpu")
    if not cards or device == "cpu" or ":" in device:
        return 0
    return 1 if study.values().get("image_size", 64) <= 64 else 4


def at_once(item):  # notebooks side by side: much of each is the work of one core
    return {0: 2, 1: 4, 4: 1}[quarters(item)]


@cache
def waiting(name):  # executions that wait for this one: the longest chain starts first
    return sum(1 + waiting(item.name) for item in study.executions if name in item.after)


workdir: str(PROJECT_ROOT)


for item in study.executions:
    if not (item.share or (study.reports / item.place).is_dir()):
        Path(done(item.name)).unlink(missing_ok=True)  # somebody took its report away


def end(*_):  # as Ctrl-C does, which reaches the jobs too
    for process in psutil.Process().children(recursive=True):
        process.kill()
    raise KeyboardInterrupt


onstart:
    signal.signal(signal.SIGTERM, end)
    # Jobs of this machine end with this process; a cluster ends those of its nodes.
    os.environ["WORKBOOK_SWEEP"] = f"{os.getpid()} {os.uname().nodename}"


rule all:
    default_target: True
    input: [done(item.name) for item in study.executions]


for item in study.executions:

    rule:
        name: item.name
        input: [done(name) for name in item.after], modules_behind(PROJECT_ROOT / f"notebooks/{item.notebook}.ipynb")
        output: touch(done(item.name))
        params: values=lambda wildcards, values=item.parameters: values, depends=depends(study, item), item=lambda wildcards, item=item: item
        priority: waiting(item.name) + (not item.combination)
        threads: 1 if item.combination or item.share else max(1, workflow.cores // at_once(item))
        resources: gpu=int(item.parameters.get("device", "cpu") != "cpu"), gpu_quarters=quarters(item)
        script: "helpers/execute.py"
