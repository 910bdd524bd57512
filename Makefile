# Every target reuses an active virtual environment, or makes .venv. `make help` lists them.
SHELL := /bin/bash
STUDY ?= demo
SET ?=
VARY ?=
MORE ?=
PYTHON ?= python3
VENV := $(if $(VIRTUAL_ENV),$(VIRTUAL_ENV),$(if $(filter-out base,$(CONDA_DEFAULT_ENV)),$(CONDA_PREFIX),.venv))
RUN := "$(VENV)/bin/python"
# A worker that dies ends the run with its test's name; a replaced one may wait for ever.
TESTS := $(RUN) -m pytest -n auto --dist loadscope --max-worker-restart=0
# What Run All leaves in the metadata of a notebook, beside outputs and counts, is taken out.
STRIPPED := metadata.papermill metadata.widgets cell.metadata.papermill cell.metadata.execution
STRIPPED += $(addprefix metadata.language_info.,version codemirror_mode file_extension mimetype nbconvert_exporter pygments_lexer)
STRIP := "$(abspath $(VENV))/bin/python" -m nbstripout --keep-id --extra-keys "$(STRIPPED)"
export MPLCONFIGDIR ?= $(CURDIR)/work/.matplotlib

.PHONY: help setup ready report sweep findings pages share test nightly browser lab lint format size
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

# The clone whose modules the environment has; empty where it has none.
INSTALLED = $(shell $(RUN) -I -c "import importlib.metadata as m, json, urllib.parse as u; print(*(u.unquote(json.loads(d.read_text('direct_url.json') or '{}').get('url', '')[7:]) for d in m.distributions(name='generalization-workbook')))" 2> /dev/null)
HERE := $(shell pwd -P)

setup: ## install the project and what it needs; an environment with another clone's modules takes this one's
	@test -x $(RUN) || $(PYTHON) -m venv "$(VENV)"
	@ready="$(VENV)/.workbook-ready"; if [ "$(INSTALLED)" != "$(HERE)" ] || [ ! "$$ready" -nt pyproject.toml ] || [ ! "$$ready" -nt constraints.txt ]; then \
	  $(RUN) -m pip install --disable-pip-version-check -c constraints.txt -e ".[dev]" && touch "$$ready"; fi
	@if [ -e .git ]; then git config filter.workbook.clean '$(STRIP)'; fi

ready:
	@clone="$(INSTALLED)"; if [ -n "$$clone" ] && [ "$$clone" != "$(HERE)" ]; then \
	  echo "this environment has the modules of another clone, $$clone; leave it (deactivate), so that make takes .venv, or let it have this clone: make setup" >&2; exit 2; fi
	@$(MAKE) --no-print-directory setup

# A failed notebook or combination costs itself and those that read it; the same command goes on.
SNAKEMAKE = $(RUN) -m snakemake --cores all --keep-going --nolock --rerun-incomplete --quiet host progress reason rules

report: ready ## run the whole chain on the embedded default: reports/demo
	$(SNAKEMAKE) --config study=demo set='$(SET)'

sweep: ready ## run a study: make sweep STUDY=kinds20 VARY="03_cam_scoring.cam_threshold=0.1,0.2" SET="device=cpu" MORE=--dry-run
	$(SNAKEMAKE) $(MORE) --config study=$(STUDY) set='$(SET)' vary='$(VARY)'

findings: ready ## check every number of a study's FINDINGS.md against its notebooks' results: make findings STUDY=kinds20 (SET=--write writes it)
	@$(RUN) -m helpers.report.findings $(STUDY) $(SET)

pages: ready ## build the pages of all reports, which open from disk: reports/_site/index.html
	@$(RUN) -m helpers.report.pages

share: pages ## pack a study's report with the pages, without networks: make share STUDY=kinds20
	@mkdir -p work/share && tar -czf work/share/$(STUDY).tar.gz -C reports --exclude '*.safetensors' $(STUDY) _site
	@echo work/share/$(STUDY).tar.gz

test: ready ## contract, unit and smoke tests
	$(TESTS) --no-loadscope-reorder -m "not browser and not nightly"

nightly: ready ## kills, interrupts, damage, a full disk: ten minutes
	$(TESTS) -m nightly

browser: ready ## JupyterLab and report pages in headless Chromium (Debian: chromium, chromium-driver)
	$(TESTS) -m browser tests/browser

lab: ready ## open JupyterLab on the notebooks
	$(RUN) -m jupyterlab --notebook-dir="$(CURDIR)"

lint: ready ## check style of modules and notebooks
	$(RUN) -m ruff check . && $(RUN) -m ruff format --check .

size: ready ## how much there is to read, and how it is written
	@$(RUN) -m benchmarks.size

format: ready ## put modules and notebooks into style
	$(RUN) -m ruff check --fix . && $(RUN) -m ruff format .
