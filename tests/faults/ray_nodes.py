"""Two Ray nodes on one machine, one killed in the middle: the study completes on the other, and what was complete is not run again.

Skipped where Ray is absent. ``ray_nodes.py``; under two minutes on two cores.
"""

import collections
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from projects import ROOT, trivial

from helpers.sweep import cli
from helpers.sweep.cli import Options

PARTS = 8
SOURCE = """import os, time
with open("begun.txt", "a") as file:
    file.write(f"{number}\\n")
time.sleep(3)"""


def kill_when_some_are_complete(cluster: object, node: object, root: Path, complete: list[str]) -> None:
    """Wait for the first records, note them, and take the node away as a power cut does."""
    while len(done := list((root / "work/many/executions/01_trivial").glob("*.json"))) < 3:
        time.sleep(0.05)
    complete += [path.stem.removeprefix("number") for path in done]
    print(f"complete before the kill: {sorted(complete)}", flush=True)
    cluster.remove_node(node, allow_graceful=False)


def main() -> None:
    """Run, kill, and count how often each part was begun."""
    try:
        from ray.cluster_utils import Cluster
    except ImportError:
        print("skipped: Ray is not installed (pip install '.[cluster]')")
        return
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).strip(os.pathsep)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "project"
        study = trivial(root, PARTS, SOURCE)
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        second = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        complete: list[str] = []
        threading.Thread(target=kill_when_some_are_complete, args=(cluster, second, root, complete), daemon=True).start()
        started = time.monotonic()
        code = cli.run_study(study, root=root, options=Options(engine="ray", address=cluster.address))
        begun = collections.Counter((root / "begun.txt").read_text().split())
        cluster.shutdown()
        assert code == 0
        assert len(list((root / "reports/many/01_trivial").glob("number*.ipynb"))) == PARTS
        assert all(begun[number] == 1 for number in complete if number != "0"), begun  # the whole runs with the default, 0
        print(f"one of two nodes killed, all {PARTS} complete in {time.monotonic() - started:.0f} s; begun: {dict(begun)}")
        assert cli.run_study(study, root=root, options=Options()) == 0  # another engine recognises them


if __name__ == "__main__":
    sys.exit(main())
