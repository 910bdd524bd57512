"""The command, Snakemake and papermill together, on notebooks that take no time, in a folder whose name has a blank and braces."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace

import nbformat
import pytest
import torch
import yaml

from helpers.files import PROJECT_ROOT, write_tensors
from helpers.report import sweeps
from helpers.sweep import cli
from tests.sweep.conftest import at_work

# What each notebook of these tests does: it notes that it began, and leaves a table and the story of it.
WRITES = """import json, os, pathlib
with open("begun.txt", "a") as file:
    file.write("{stem}\\n")
place = pathlib.Path(os.environ["WORKBOOK_STAGING"])
for name, text in {{"tables/{stem}.csv": "a\\n{value}\\n", "story/{stem}.json": json.dumps([])}}.items():
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_text(text)"""


IMPORTS = "if False:\n    from helpers.cams import localize"

# What Snakemake, papermill, a shell or YAML would take for their own syntax.
ODD = "w/{architecture}, a='b' \"ü\" $HOME %s {{x}} \\ #!*.pt"

FIRST = 'a: int = 1  # one\nword: str = ""  # a text'

# A torch that is no more than a look at GPUs needs.
TORCH = """
import os
from types import SimpleNamespace as Named

__version__ = "0.0"

def init():
    if fault := globals().get("FAULT"):
        raise fault

class device:  # named by annotations
    pass

def zeros(count, device):
    return Named(add_=lambda other: Named(item=float))

visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
cuda = Named(
    init=init,
    device_count=lambda: len(visible),
    get_device_name=lambda number: "Pretended",
)
"""


@pytest.fixture
def chain(project):
    """A study of two notebooks, the second after the first."""
    for stem, declared in (
        ("01_a", FIRST),
        ("02_b", "b: int = 1  # two"),
    ):
        project.notebook(
            stem,
            declared,
            f"# {stem} Its heading",
            IMPORTS,
            WRITES.format(stem=stem, value="1"),
        )
    project.study(notebooks={"01_a": {"word": ODD}, "02_b": {}})
    return project


def begun(project):
    """The notebooks that began since this was asked last."""
    path = project.root / "begun.txt"
    found = path.read_text().split() if path.is_file() else []
    path.unlink(missing_ok=True)
    return found


def test_a_study_runs_and_what_changed_runs_again_and_nothing_else(chain):
    code, out, err = chain.run()
    assert code == 0, out + err
    assert begun(chain) == ["01_a", "02_b"]
    told = [
        line.rpartition(" in ")[0] or line
        for line in out.splitlines()
        if not line.startswith("  ")
    ]  # beside progress
    assert told[:2] == ["01_a starts", "01_a done"]
    reports = chain.root / "reports/demo"
    executed = nbformat.read(reports / "02_b.ipynb", as_version=4)
    assert executed.metadata.workbook["files"] == ["story/02_b.json", "tables/02_b.csv"]
    assert str(chain.root) not in (reports / "02_b.ipynb").read_text()
    assert executed.metadata.papermill.input_path == "notebooks/02_b.ipynb"
    first = nbformat.read(reports / "01_a.ipynb", as_version=4)
    assert first.metadata.papermill.parameters.word == ODD
    assert json.loads((reports / "published.json").read_text())["notebooks"] == [
        "01_a",
        "02_b",
    ]

    halves = [
        chain.root / f"work/demo/runs/.result.json.{number}.partial"
        for number in (os.getpid(), 2**22 + 1)
    ]
    halves[0].parent.mkdir()
    for path in [
        *chain.root.glob("notebooks/*"),
        *chain.root.glob("helpers/*.py"),
        chain.root / "params/demo.yaml",
        *halves,
    ]:
        path.touch()
    assert chain.run()[0] == 0 and begun(chain) == []
    assert [path.exists() for path in halves] == [
        True,
        False,
    ]  # the one of a living process, and what a killed one left
    changed = ("--set", "a=2", "--set", "word='{b}, ''ö''='")
    told = chain.run("demo", *changed, "--dry-run")[1].splitlines()
    assert told == ["01_a: runs: changed: a, word", "02_b: runs: after 01_a"]
    assert chain.run("demo", "--set", "b=2")[0] == 0 and begun(chain) == ["02_b"]
    (reports / "tables/02_b.csv").unlink()  # what it made is gone
    told = chain.run("demo", "--set", "b=2", "--dry-run", "--", "--forcerun", "01_a")[
        1
    ].splitlines()
    assert told[0] == "01_a: runs: Forced execution" and told[1].startswith(
        "02_b: runs: has no complete results in work/"
    )
    with (chain.root / "helpers/cams/localize.py").open("a") as file:
        file.write("# a further line\n")
    chain.notebook(
        "02_b",
        "b: int = 2  # two",
        WRITES.format(stem="02_b", value="7").replace("tables/02_b", "tables/other"),
    )
    command = f"{sys.executable} -m helpers.sweep demo --dry-run | head -1"  # a reader that has enough ends the command
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=chain.root,
        env=chain.environment(),
        capture_output=True,
        text=True,
    )
    assert (
        done.stdout == "01_a: runs: changed: helpers/cams/localize.py\n"
        and "Traceback" not in done.stderr
    )
    assert chain.run()[0] == 0 and begun(chain) == ["01_a", "02_b"]
    assert sorted(path.name for path in (reports / "tables").iterdir()) == [
        "01_a.csv",
        "other.csv",
    ]  # the former one's is gone


@pytest.mark.nightly
def test_snakemake_alone_runs_the_study_too_and_both_know_what_the_other_did(chain):
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--cores",
        "1",
        "--config",
        "study=demo",
    ]
    done = subprocess.run(
        command, cwd=chain.root, env=chain.environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert begun(chain) == ["01_a", "02_b"]
    assert chain.run()[0] == 0 and begun(chain) == []
    again = subprocess.run(
        command, cwd=chain.root, env=chain.environment(), capture_output=True, text=True
    )
    assert "Nothing to be done" in again.stderr + again.stdout


@pytest.mark.nightly
def test_a_failing_notebook_publishes_nothing_and_holds_back_only_what_reads_it(chain):
    assert chain.run()[0] == 0
    begun(chain)
    chain.notebook(
        "02_b",
        "b: int = 1  # two",
        WRITES.format(stem="02_b", value="2"),
        "# The heading",
        "1 / 0",
    )
    chain.notebook("04_d", "d: int = 1  # four", WRITES.format(stem="04_d", value="1"))
    chain.notebook(
        "12_e", "d: int = 1  # twelve", WRITES.format(stem="12_e", value="1")
    )
    notebooks = {"01_a": {"word": ODD}, "02_b": {}, "04_d": {}, "12_e": {}}
    chain.study(notebooks=notebooks)
    before = (chain.root / "reports/demo/02_b.ipynb").read_bytes()
    code, out, err = chain.run()
    assert code == 1 and sorted(begun(chain)) == ["02_b", "12_e"]
    assert (
        "02_b failed: cell 4 (1 / 0)\n  ZeroDivisionError: division by zero\n  all up to there: work/demo/staging/demo/02_b"
        in out
    )
    assert err.startswith("02_b failed or was killed; repeat the command to continue")
    assert (chain.root / "reports/demo/02_b.ipynb").read_bytes() == before
    assert (chain.root / "reports/demo/tables/02_b.csv").read_text() == "a\n1\n"
    assert (chain.root / "work/demo/staging/demo/02_b/02_b.ipynb").is_file()
    chain.notebook("02_b", "b: int = 1  # two", WRITES.format(stem="02_b", value="2"))
    assert chain.run()[0] == 0 and begun(chain) == ["02_b", "04_d"]
    assert (chain.root / "reports/demo/tables/02_b.csv").read_text() == "a\n2\n"


def test_a_sweep_executes_each_value_and_one_that_fails_costs_itself(project):
    source = "1 / a\n" + WRITES.format(stem="03_c", value="0").replace(
        "a\\n0\\n", "{a}"
    ).replace('"tables/03_c.csv": "', '"tables/03_c.csv": f"')
    project.notebook("03_c", "a: int = 1  # number", source)
    project.study(notebooks={"03_c": {}}, sweep={"03_c": {"a": [2, 0]}})
    code, _, err = project.run()
    assert code == 1 and err.startswith("03_c@a=0 failed, and the same command tries")
    assert len(begun(project)) == 2
    reports = project.root / "reports/demo"
    folder = reports / "sweeps/03_c"
    assert (reports / "tables/03_c.csv").read_text() == "1"
    assert (folder / "a=2/tables/03_c.csv").read_text() == "2"
    executed = nbformat.read(folder / "a=2/03_c.ipynb", as_version=4)
    assert executed.metadata.papermill.parameters.a == 2
    assert not (folder / "a=0").exists() and (reports / "index.html").is_file()
    two, zero = json.loads((folder / "sweep.json").read_text())["combinations"]
    assert two == {"folder": "a=2", "values": {"a": 2}, "failed": {}}
    assert "ZeroDivisionError: division by zero" in zero["failed"]["03_c"]
    vary = ("demo", "--vary", "03_c.a=2,3")
    told = project.run(*vary, "--dry-run")[1].splitlines()
    assert told == [
        "03_c: complete, nothing changed",
        "03_c@a=2: complete, nothing changed",
        "03_c@a=3: runs: has no complete results in work/",
    ]
    told = project.run("demo", "--dry-run")[1].splitlines()[-1]
    assert told.startswith("03_c@a=0: runs: failed: cell 2 (1 / a) | ZeroDivisionError")
    code, out, err = project.run(*vary)
    assert code == 0, err
    assert out.endswith(
        "compared: reports/demo/sweeps/03_c/index.html\n"
        "complete: reports/demo/index.html\n"
    )
    assert begun(project) == ["03_c"]
    assert (folder / "a=3/tables/03_c.csv").read_text() == "3"


WAITS = """import pathlib, time
pathlib.Path("here").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.05)"""


def wait_for(condition, seconds=60):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


@pytest.mark.parametrize(
    "how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)]
)
def test_an_interrupt_ends_all_within_a_second_a_second_sweep_is_refused_and_the_same_command_goes_on(
    chain, how
):
    chain.notebook("01_a", FIRST, "# The section of waiting", WAITS)
    sweep = chain.start("demo")
    wait_for((chain.root / "here").exists)
    code, _, err = chain.run()
    assert code == 2 and "another sweep works on" in err
    assert re.search(
        r"^01_a: runs: has no complete results in work/; at [\d :-]{19}: The section of waiting$",
        chain.run("demo", "--status")[1],
        re.M,
    )
    began = time.monotonic()
    sweep.send_signal(how)
    assert sweep.wait(10) == 130
    assert time.monotonic() - began < 2  # one second on an idle machine
    wait_for(lambda: not at_work(chain.root), 10)
    assert "runs: has no complete results in work/" in chain.run("demo", "--status")[1]
    (chain.root / "go").touch()
    assert chain.run()[0] == 0 and begun(chain) == ["02_b"]


@pytest.mark.nightly
def test_a_killed_sweep_goes_on_with_what_was_not_complete_and_one_new_value_runs_alone(
    project,
):
    waits = f"if a == 2:\n    {WAITS.replace(chr(10), chr(10) + '    ')}"
    source = WRITES.format(stem="{a}", value="1").replace('"{a}', 'f"{a}')
    project.notebook("03_c", "a: int = 1  # number", source, waits)
    sweep = {"03_c": {"a": [2, 3, 4, 5]}}
    project.study(notebooks={"03_c": {}}, sweep=sweep)
    process = project.start("demo", "--cores", "2")
    done = project.root / "work/demo/done/demo"
    wait_for(lambda: (project.root / "here").exists() and len([*done.glob("*")]) > 1)
    process.kill()
    wait_for(lambda: not at_work(project.root), 20)
    complete = {path.stem for path in done.glob("*.json")}
    assert "03_c" in complete and "03_c@a=2" not in complete
    begun(project)
    (project.root / "go").touch()
    assert project.run()[0] == 0
    again = {"03_c"} | {f"03_c@a={a}" for a in (2, 3, 4, 5)}
    assert len(begun(project)) == len(again - complete)
    project.study(notebooks={"03_c": {}}, sweep={"03_c": {"a": [2, 3, 4, 6]}})
    assert project.run()[0] == 0 and begun(project) == ["6"]


@pytest.mark.nightly
def test_huang100_runs_through_a_sweep_with_small_weights_of_its_own(tmp_path):
    """The study as shipped, but for its images, sizes and the place of weights."""
    timm = pytest.importorskip("timm")
    study = yaml.safe_load((PROJECT_ROOT / "params/huang100.yaml").read_text())
    torch.manual_seed(0)
    (tmp_path / "weights {of} us").mkdir()
    place = "weights {of} us/{architecture}.safetensors"
    networks = {"tf_efficientnet_b0": "tf_efficientnet_b0", "RN50": "resnet50_clip"}
    for name, in_timm in networks.items():
        weights = timm.create_model(in_timm).state_dict()
        write_tensors(tmp_path / place.replace("{architecture}", name), weights)
    names = ["disc", "cross", "bars", "ring", "star", "frame"]
    study["common"] = {"device": "cpu"}
    study["notebooks"]["01_data_subset"] |= {
        "data_source": "synthetic",
        "data_path": "",
        "class_ids": [f"synthetic_{name}" for name in names],
        "image_size": 32,
        "images_per_class": 12,
        "test_images_per_class": 4,
    }
    study["notebooks"]["06_kappa_tradeoff"] |= {
        "kappa_families": [*networks, "resnet18 w0.125", "resnet18 w0.25"],
        "kappa_weights": str(tmp_path / place),
        "made_epochs": 1,
        "seen_classes": 4,
        "unseen_fractions": [0.0, 0.333],
        "noise_generator": "blur",
        "noise_ssim": [0.8, 0.9, 1.0],
        "complexity_images": 10,
        "flatness_images": 8,
        "flatness_halvings": 2,
        "sharpness_images": 4,
        "sharpness_steps": 1,
        "permutations": 19,
        "bootstrap_resamples": 10,
    }
    study["sweep"] = {"06_kappa_tradeoff": {"trade_off_lambda": [0.5, 2.0]}}
    path = tmp_path / "huang100.yaml"
    path.write_text(yaml.safe_dump(study))
    folders = {
        name: f"--set={name}={tmp_path / name}" for name in ("work_dir", "reports_dir")
    }
    assert cli.main([str(path), *folders.values()]) == 0
    table = sweeps.sweep_results(
        "huang100", "06_kappa_tradeoff", str(tmp_path / "reports_dir")
    )
    assert table["trade_off_lambda"].tolist() == [0.5, 2.0]
    assert table["networks"].tolist() == [4, 4] and (table["failed"] == "").all()


def test_what_a_killed_sweep_left_goes_when_the_next_one_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    study = SimpleNamespace(work=tmp_path / "work/a")
    with cli._temporary_folder(study) as folder:
        assert folder.parent == tmp_path
        assert list(folder.iterdir()) == []
    assert not folder.exists()
    (folder / "snakemake7k/source-cache").mkdir(parents=True)
    with cli._temporary_folder(study) as again:
        assert again == folder and list(again.iterdir()) == []
    with cli._temporary_folder(SimpleNamespace(work=tmp_path / "work/b")) as other:
        assert other != folder


@pytest.mark.nightly
def test_a_killed_kernel_is_told_and_a_killed_snakemake_leaves_nobody(chain):
    chain.notebook(
        "01_a",
        FIRST,
        "import os, pathlib\npathlib.Path('once').exists() or os.kill(os.getpid(), 9)",
    )
    code, out, _ = chain.run()
    assert code == 1 and "01_a failed: DeadKernelError" in out
    (chain.root / "once").touch()
    chain.notebook("02_b", "b: int = 1  # two", WAITS)
    places = {"TMPDIR": str(chain.root / "tmp")}
    (chain.root / "tmp").mkdir()
    sweep = chain.start("demo", **places)
    wait_for((chain.root / "here").exists)
    assert list(chain.root.glob("tmp/workbook-*/snakemake*"))
    (snakemake,) = [
        process
        for process in at_work(chain.root)
        if "snakemake" in process.cmdline() and process.ppid() == sweep.pid
    ]
    snakemake.kill()
    out, err = sweep.communicate(timeout=20)
    assert (
        sweep.returncode == 1
        and "Snakemake ended with -9" in err
        and "01_a done" in out
    )
    wait_for(lambda: not at_work(chain.root), 10)
    (chain.root / "go").touch()
    assert chain.run("demo", **places)[0] == 0 and begun(chain) == []
    assert list((chain.root / "tmp").iterdir()) == []


def test_each_of_several_executions_has_a_gpu_of_its_own(project):
    """Two pretended GPUs, three parts of half a second, at most two at once."""
    (project.root / "torch.py").write_text(TORCH)
    source = "import os, time\ndevice = os.environ['CUDA_VISIBLE_DEVICES']\nbegan = time.time()\ntime.sleep(0.5)\n"
    source += "with open('devices.txt', 'a') as file:\n    file.write(f'{device} {began} {time.time()}\\n')"
    project.notebook(
        "02_b", 'device: str = "auto"  # where\nshard: str = ""  # share', source
    )
    project.study(notebooks={"02_b": {}}, sweep={"02_b": {"shard": 3}})
    code, out, err = project.run(
        "demo",
        "--gpus",
        "2",
        CUDA_VISIBLE_DEVICES="GPU-3,GPU-7",
        TMPDIR=str(project.root),
        WORKBOOK_GPU_LOCKS=str(project.root / "locks"),
    )
    assert code == 0, out + err
    started = re.findall(r"^(\S+) starts on Pretended \((.*)\)$", out, re.M)
    assert len(started) == 4 and {card for _, card in started} == {"GPU-3", "GPU-7"}
    rows = [
        line.split() for line in (project.root / "devices.txt").read_text().splitlines()
    ]
    assert {row[0] for row in rows} == {"GPU-3", "GPU-7"} and len(rows) == 4
    for device in ("GPU-3", "GPU-7"):
        spans = sorted(
            (float(row[1]), float(row[2])) for row in rows if row[0] == device
        )
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
    assert not (
        project.root / "reports/demo/02_b-1_of_3.ipynb"
    ).exists()  # parts publish nothing
    # no folder of a kernel or of Snakemake is left
    assert not list(project.root.glob("workbook-*[!k]"))
    assert not list(project.root.glob("snakemake*"))


def test_a_driver_that_is_too_old_is_told_in_words_of_torch_before_anything_starts(
    project,
):
    project.notebook("01_a", "a: int = 1  # one", "open('begun.txt', 'w').close()")
    project.notebook("02_b", 'device: str = "auto"  # where', "")
    project.study(notebooks={"01_a": {}, "02_b": {}})
    too_old = "RuntimeError('The NVIDIA driver on your system is too old (found 1)')"
    (project.root / "torch.py").write_text(f"FAULT = {too_old}\n{TORCH}")
    places = {
        "CUDA_VISIBLE_DEVICES": "0",
        "WORKBOOK_GPU_LOCKS": str(project.root / "locks"),
    }
    code, out, err = project.run("demo", "--set", "device=cuda", **places)
    said = "torch 0.0 can use no GPU here: The NVIDIA driver on your system is too old"
    assert code == 2 and f"device is 'cuda', and {said}" in err
    assert not (project.root / "begun.txt").exists()
    code, out, err = project.run("demo", **places)
    assert code == 0, out + err
    assert out.splitlines()[0].startswith(f"no GPU is used: {said}")
    assert f"02_b starts on the CPU, since {said}" in out


@pytest.mark.nightly
def test_every_make_target_takes_a_path_with_blanks(chain):
    place = chain.root / "an environment/bin"
    place.mkdir(parents=True)
    (place / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (place / "python").chmod(0o755)
    for name in ("pyproject.toml", "constraints.txt"):
        (chain.root / name).write_text("")
        os.utime(
            chain.root / name, (0, 0)
        )  # older than the mark below, so that nothing is installed
    (place.parent / ".workbook-ready").touch()
    shutil.copy(PROJECT_ROOT / "helpers/report/pages.py", chain.root / "helpers/report")
    for target in ("report", "status", "pages", "share", "clean"):
        command = ["make", target, "STUDY=demo", f"PYTHON={sys.executable}"]
        command.append(f"INSTALLED={chain.root.resolve()}")
        done = subprocess.run(
            command,
            cwd=chain.root,
            env=chain.environment(VIRTUAL_ENV=str(place.parent)),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert begun(chain) == ["01_a", "02_b"]
    assert (chain.root / "work/share/demo.zip").is_file()


@pytest.mark.nightly
def test_odd_surroundings_are_told_in_a_sentence_or_do_not_matter(chain, tmp_path):
    (tmp_path / "file").touch()
    assert (
        chain.run("demo", MPLBACKEND="nonsense", IPYTHONDIR=str(tmp_path / "file/x"))[0]
        == 0
    )  # kernels have their own
    with pytest.raises(SystemExit):
        cli.main([])
    assert cli.main(["--new", "birds"]) == 2


@pytest.mark.nightly
def test_plain_papermill_runs_the_study_that_it_names_and_refuses_a_whole_study_file(
    project, tmp_path
):
    source = "from helpers.report.notebook import Report\nreport = Report.begin('01_a', globals())\nprint('count', report.parameters.count)\nreport.end()"
    project.notebook("01_a", "count: int = 1  # how many", source)
    project.study(notebooks={"01_a": {"count": 1}})
    project.study("other", claims=[], common={}, notebooks={"01_a": {"count": 5}})
    command = [
        sys.executable,
        "-m",
        "papermill",
        "notebooks/01_a.ipynb",
        str(tmp_path / "out.ipynb"),
    ]
    own = {
        "cwd": project.root,
        "env": project.environment(),
        "capture_output": True,
        "text": True,
    }
    done = subprocess.run([*command, "-p", "study", "other"], **own)
    assert done.returncode == 0 and "count 5" in (tmp_path / "out.ipynb").read_text(), (
        done.stderr
    )
    assert (
        project.root / "work/other/scratch/01_a/story/01_a.json"
    ).is_file() and not (project.root / "reports").exists()
    done = subprocess.run([*command, "-f", "params/other.yaml"], **own)
    assert (
        done.returncode == 1
        and "in place of `-f FILE` write `-p study NAME`" in done.stderr
    )
