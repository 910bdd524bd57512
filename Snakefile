# A study by Snakemake alone: snakemake --cores 2 --config study=demo
# `python -m helpers.sweep demo` does the same, tells every fault of the study's file before, says what runs,
# and tries combinations of a sweep again that failed, whose failure is a record here.
import sys

sys.path.insert(0, workflow.basedir)
from helpers.sweep.shares import with_shares
from helpers.sweep.study import asks_only_combinations, from_records, load_study

overrides, variations = config.get("set", []), config.get("vary", [])
study = load_study(config.get("study", "demo"), overrides, variations=variations)
study = from_records(
    study, only_varied=asks_only_combinations(variations, overrides, study)
)
study = with_shares(study, int(config.get("shares", 0)))
wholes = [execution.name for execution in study.executions if not execution.part]
study.work.mkdir(parents=True, exist_ok=True)
study.withdraw_changed()


def done(name):  # the record of a complete execution, relative to the study's folder of work
    return f"done/{study.name}/{name}.json"


def literal(text):
    """A value as it is: Snakemake takes braces in a plain text for wildcards."""
    return lambda wildcards: text


workdir: str(study.work)


rule all:
    default_target: True
    input:
        [done(name) for name in wholes],  # each a target, so that one whose record was withdrawn is made anew
        done("pages"),


# One rule for each notebook, for each share of its work (`shard: 8` in the study's
# `sweep` block, or one for each GPU), and for each combination of values that the block lists.
# It runs again when one of its parameters changes (a value, its source, a helper, the claims: see `Execution.depends`).
for number, execution in enumerate(study.executions):

    rule:
        name: execution.name
        input: [done(name) for name in execution.after],
        output: done(execution.name),
        params: *map(literal, execution.depends), job=literal(study.job(execution)),
        # The study's own execution comes first, and leaves what its combinations share.
        priority: 0 if execution.combination else len(study.executions) - number
        threads: 1 if execution.combination else config.get("threads", workflow.cores or 1)
        resources: gpu=int(execution.parameters.get("device", "cpu") != "cpu"),
        shell: "cd {study.root:q} && exec {sys.executable:q} -m helpers.sweep.execute {params.job:q} $PPID {threads}"


rule pages:
    input: [done(name) for name in wholes],
    output: done("pages"),
    params: job=literal(study.job()),
    shell: "cd {study.root:q} && exec {sys.executable:q} -m helpers.sweep.execute {params.job:q} $PPID"
