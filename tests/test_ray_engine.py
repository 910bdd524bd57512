"""The cluster engine against a stand-in for Ray; tests/faults/ray_nodes.py has the real one, which is not installed everywhere."""

import sys
import types

import pytest

from helpers import ray_engine, worker
from helpers.ray_engine import RayEngine


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

        def submit(job, root):
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
    assert ray_engine.address_fault("server1:6379") == ""
    engine = RayEngine(tmp_path, "server1:6379")
    assert ray.asked["address"] == "server1:6379"
    assert (ray.options["max_retries"], ray.options["max_calls"], ray.options["num_gpus"]) == (0, 1, 0)
    assert engine.slots == 6
    assert RayEngine(tmp_path, "server1:6379", jobs=2).slots == 2


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
    ray.submitted[0].outcome = tuple(worker.Outcome("done", 2.0))
    ray.submitted[1].outcome = RayError("the node died")
    ray.submitted[2].outcome = RayTaskError(ImportError("no helpers there"))
    ended = dict(engine.wait(0.0) + engine.wait(0.0) + engine.wait(0.0))
    assert ended["a"] == worker.Outcome("done", 2.0)
    assert (ended["b"].kind, ended["b"].where, ended["b"].error) == ("lost", "worker or machine lost", "RayError")
    assert (ended["c"].kind, ended["c"].error) == ("error", "ImportError: no helpers there")
    assert engine.wait(0.0) == []


def test_a_task_over_its_time_limit_is_cancelled_and_told_as_such(ray, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(ray_engine.time, "monotonic", lambda: now[0])
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


def test_leaving_cancels_what_runs_and_leaves_the_cluster(ray, tmp_path):
    engine = RayEngine(tmp_path, "local")
    assert ray.asked["include_dashboard"] is False
    engine.submit("a", {}, width=1)
    engine.close()
    assert ray.cancelled == ray.submitted
    assert ray.asked["ended"]
