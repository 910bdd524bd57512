"""Real kernels in worker processes: what is killed is tried again, what takes too long is ended, and nothing stays behind."""

import json
import os
import sys
import tempfile
import types

import nbformat
import psutil
import pytest
import yaml

from helpers.sweep import cli, engines
from helpers.sweep.cli import Options
from helpers.sweep.engines import RayEngine
from helpers.sweep.worker import Outcome

DECLARED = 'study: str = "x"  # name\nact: str = "whole"  # what this part does, one of whole, well, kernel, worker, child, long or wrong'


# Each part dies at its first attempt only; the second one finds the mark of the first.
ACT = """import os, pathlib, signal, subprocess, sys, time
first = not pathlib.Path(act).exists()
pathlib.Path(act).touch()
if act == "child":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
if first and act in ("kernel", "child"):
    os.kill(os.getpid(), signal.SIGKILL)
if first and act == "worker":
    os.kill(os.getppid(), signal.SIGKILL)
while act == "long":
    time.sleep(1)
assert act != "wrong", "this is \\x1b[31mred\\x1b[0m"
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A notebook with a closing part, split by what it does; gives a function that sweeps some of it."""
    for name in ("notebooks", "helpers", "params"):
        (tmp_path / name).mkdir()
    cells = [nbformat.v4.new_code_cell(DECLARED, metadata={"tags": ["parameters"]}), nbformat.v4.new_code_cell(ACT)]
    names = ["OMP_NUM_THREADS", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"]
    closing = f"import pathlib; pathlib.Path('closed').write_text(' '.join(os.environ.get(name, '') for name in {names}))"
    cells += [nbformat.v4.new_code_cell(closing, metadata={"tags": ["closing"]}), nbformat.v4.new_code_cell("1")]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), tmp_path / "notebooks/01_a.ipynb")

    def run(*acts, **options):
        (tmp_path / "params/s.yaml").write_text(yaml.safe_dump({"notebooks": {"01_a": {}}, "sweep": {"01_a": {"act": list(acts)}}}))
        return cli.run_study(tmp_path / "params/s.yaml", root=tmp_path, options=Options(**options))

    run.root, run.temporary = tmp_path, tmp_path / "temporary"
    run.temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(run.temporary))
    return run


def test_killed_kernels_and_workers_are_tried_again_and_leave_nothing(project, capsys, monkeypatch):
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "123456789")
    assert project("well", "kernel", "worker", "child", jobs=2) == 0
    printed = capsys.readouterr().out
    assert "01_a/kernel: the kernel failed (DeadKernelError" in printed
    assert "01_a/worker: the worker ended (by signal 9); it is tried again" in printed
    assert printed.count("it is tried again") == 3
    root = project.root
    attempts = {path.stem: json.loads(path.read_text())["attempts"] for path in (root / "work/s/executions/01_a").glob("*.json")}
    assert attempts == {"well": 1, "kernel": 2, "worker": 2, "child": 2}
    threads = os.environ.get("OMP_NUM_THREADS", "")  # the whole has its own parameters, and all cores
    assert (root / "closed").read_text() == f"{threads} 123456789 1073741824"  # what the user sets stays
    part = json.loads((root / "reports/s/01_a/well.ipynb").read_text())
    assert len(part["cells"]) == 3  # declared, injected, act: what comes from "closing" on is the whole's
    assert part["metadata"]["papermill"]["input_path"] == "notebooks/01_a.ipynb"
    assert len(json.loads((root / "reports/s/01_a.ipynb").read_text())["cells"]) == 5
    assert not [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(root)]
    assert [path for path in root.rglob("*") if ".partial" in path.name or path.suffix == ".claim"] == []
    assert list(project.temporary.iterdir()) == []


def test_an_execution_over_its_time_limit_is_ended_and_an_error_in_a_cell_is_no_reason_to_try_again(project, capsys):
    assert project("long", time_limit=0.02) == 1
    assert "01_a/long: stopped\n  it took longer than its time limit of 1.2 s" in capsys.readouterr().err
    assert project("wrong") == 1
    printed = capsys.readouterr()
    assert "01_a/wrong: cell 2 failed (import os, pathlib" in printed.err
    assert "AssertionError: this is red\n  partial report: reports/s/01_a/wrong.partial.ipynb" in printed.err
    assert "tried again" not in printed.out
    assert "this is" in (project.root / "reports/s/01_a/wrong.partial.ipynb").read_text()
    assert not (project.root / "closed").exists()


def test_gpus_are_those_that_may_be_used(monkeypatch):
    for text, found in (("0,1", ["0", "1"]), ("", []), ("-1", []), ("MIG-a, GPU-b", ["MIG-a", "GPU-b"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        assert engines.visible_gpus() == found
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")

    class Listed:
        stdout = "GPU 0: NVIDIA X (UUID: GPU-1)\n  MIG 1g Device 0: (UUID: MIG-1)\nGPU 1: NVIDIA X (UUID: GPU-2)\n"

    monkeypatch.setattr(engines.subprocess, "run", lambda *given, **options: Listed)
    assert engines.visible_gpus() == ["0", "1"]


def test_places_are_counted_by_gpus_and_else_by_cores(monkeypatch):
    monkeypatch.setattr(engines, "cores", lambda: list(range(8)))
    assert engines.slots_for(3, ["0"], 1) == 3
    assert engines.slots_for(0, ["0", "1"], 2) == 4
    assert engines.slots_for(0, [], 2) == 4


def test_cores_and_gpus_are_dealt_out_by_the_width_of_the_stage_alone(tmp_path, monkeypatch):
    class Deaf:
        def __init__(self):
            self.heard = []

        def write(self, line):
            self.heard.append(json.loads(line))

        def flush(self):
            pass

    class Process:
        def __init__(self):
            self.stdin = Deaf()

    monkeypatch.setattr(engines, "cores", lambda: list(range(8)))
    for name in engines._THREADS:
        monkeypatch.delenv(name, raising=False)
    engine = engines.LocalEngine(tmp_path, tmp_path / "log", "t", 4, ["5", "7"])
    monkeypatch.setattr(engine, "_start", lambda slot: engines._Worker(Process(), f"t.{slot}"))
    for number in range(4):
        engine.submit(f"n{number}", {}, width=9)
    jobs = [worker.process.stdin.heard[0] for worker in engine._workers.values()]
    assert sorted(core for job in jobs for core in job["cores"]) == list(range(8))
    assert [job["environment"]["CUDA_VISIBLE_DEVICES"] for job in jobs] == ["5", "7", "5", "7"]
    assert {job["environment"]["OMP_NUM_THREADS"] for job in jobs} == {"2"}
    for worker in engine._workers.values():
        worker.job = ""
    engine.submit("whole", {}, width=1)
    alone = engine._workers[0].process.stdin.heard[1]
    assert alone["cores"] == list(range(8))
    assert "OMP_NUM_THREADS" not in alone["environment"]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # what the user sets stays
    engine.submit("n", {}, width=2)
    assert "OMP_NUM_THREADS" not in engine._workers[1].process.stdin.heard[1]["environment"]


def test_a_cluster_is_joined_at_an_explicit_address_only():
    assert "needs --address" in engines.address_fault("")
    assert "would join whatever cluster is found" in engines.address_fault("auto")
    assert engines.address_fault("local") in ("", "--engine ray needs Ray: pip install '.[cluster]' on every machine")


class Reference:
    """What a task gives; ``outcome`` is a value, or a fault to be raised."""

    def __init__(self, job):
        self.job, self.outcome = job, None


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


@pytest.fixture
def ray(monkeypatch):
    """A Ray that notes what is asked of it; a task is ready as soon as it has an outcome."""
    ray = types.ModuleType("ray")
    ray.exceptions = types.SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
    ray.asked, ray.cancelled, ray.submitted, ray.resources = {}, [], [], {"CPU": 6.0}
    ray.init = lambda **given: ray.asked.update(given)
    ray.cluster_resources = lambda: ray.resources
    ray.shutdown = lambda: ray.asked.update(ended=True)

    def remote(**options):
        ray.options = options

        def submit(job, root, token):
            ray.submitted.append(Reference(job))
            return ray.submitted[-1]

        return lambda function: types.SimpleNamespace(remote=submit)

    def wait(references, num_returns, timeout):
        ready = [item for item in references if item.outcome is not None][:num_returns]
        return ready, [item for item in references if item not in ready]

    def get(reference):
        if isinstance(reference.outcome, Exception):
            raise reference.outcome
        return reference.outcome

    def cancel(reference, force):
        assert force
        ray.cancelled.append(reference)

    ray.remote, ray.wait, ray.get, ray.cancel = remote, wait, get, cancel
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


def test_the_cluster_is_the_one_named_and_ray_itself_retries_nothing(ray, tmp_path):
    assert engines.address_fault("server1:6379") == ""
    engine = RayEngine(tmp_path, "server1:6379")
    assert ray.asked["address"] == "server1:6379"
    assert (ray.options["max_retries"], ray.options["max_calls"], ray.options["num_gpus"]) == (0, 1, 0)
    assert engine.slots == 6
    assert RayEngine(tmp_path, "server1:6379", jobs=2).slots == 2


def test_a_cluster_that_does_not_answer_is_one_clear_error(ray, tmp_path):
    def init(**given):
        raise RuntimeError("timed out\nRaylet logs: many lines")

    ray.init = init
    with pytest.raises(ConnectionError, match=r"^Ray does not come up at --address server1:6379 \(RuntimeError: timed out\)$"):
        RayEngine(tmp_path, "server1:6379")
    assert ray.asked == {"ended": True}


def test_gpus_are_taken_in_fractions(ray, tmp_path):
    ray.resources = {"CPU": 32.0, "GPU": 4.0}
    engine = RayEngine(tmp_path, "server1:6379", per_gpu=3)
    assert ray.options["num_gpus"] == pytest.approx(1 / 3)
    assert engine.slots == 12


def test_what_died_is_lost_what_is_wrong_is_an_error_and_what_is_done_comes_back(ray, tmp_path):
    engine = RayEngine(tmp_path, "server1:6379")
    for name in "abc":
        engine.submit(name, {"partial": name}, width=3)
    assert engine.wait(0.0) == []
    assert ray.submitted[0].job == {"partial": "a", "cores": None, "environment": {}}
    ray.submitted[0].outcome = tuple(Outcome("done", 2.0))
    ray.submitted[1].outcome = RayError("the node died")
    ray.submitted[2].outcome = RayTaskError(ImportError("no helpers there"))
    ended = dict(engine.wait(0.0) + engine.wait(0.0) + engine.wait(0.0))
    assert ended["a"] == Outcome("done", 2.0)
    assert (ended["b"].kind, ended["b"].where, ended["b"].error) == ("lost", "worker or machine lost", "RayError")
    assert (ended["c"].kind, ended["c"].error) == ("error", "ImportError: no helpers there")
    assert engine.wait(0.0) == []


def test_a_task_over_its_time_limit_is_cancelled_and_told_as_such(ray, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(engines.time, "monotonic", lambda: now[0])
    engine = RayEngine(tmp_path, "server1:6379", time_limit=60)
    engine.submit("a", {}, width=1)
    now[0] = 60.0
    assert engine.wait(0.0) == []
    assert ray.cancelled == []
    now[0] = 61.0
    assert engine.wait(0.0) == []
    assert ray.cancelled == ray.submitted
    ray.submitted[0].outcome = RayError("cancelled")
    ((name, outcome),) = engine.wait(0.0)
    assert (name, outcome.kind, outcome.error) == ("a", "timeout", "it took longer than its time limit of 60 s")


def test_a_task_has_a_folder_of_its_own_for_temporary_files_that_goes_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(engines.os, "environ", dict(os.environ))
    monkeypatch.chdir(tmp_path)
    seen = []

    def perform(job):
        with tempfile.NamedTemporaryFile(delete=False) as file:
            seen.append((os.path.dirname(file.name), os.environ["TMPDIR"], os.environ[engines.locks.MARK]))
        return Outcome("done", 1.0)

    monkeypatch.setattr(engines, "perform", perform)
    assert engines._perform({}, str(tmp_path), "abc") == tuple(Outcome("done", 1.0))
    place = str(tmp_path / f"workbook-abc/{os.getpid()}")
    assert seen == [(place, place, "abc.ray")]
    assert list(tmp_path.iterdir()) == []


def test_leaving_takes_away_what_killed_tasks_left_on_this_machine(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = []
    monkeypatch.setattr(engines, "end_family", ended.append)
    (tmp_path / "workbook-abc/7").mkdir(parents=True)
    RayEngine(tmp_path, "local", token="abc").close()
    assert ended == ["abc."]
    assert list(tmp_path.iterdir()) == []


def test_leaving_cancels_what_runs_and_leaves_the_cluster(ray, tmp_path):
    engine = RayEngine(tmp_path, "local")
    assert ray.asked["include_dashboard"] is False
    engine.submit("a", {}, width=1)
    engine.close()
    assert ray.cancelled == ray.submitted
    assert ray.asked["ended"]
