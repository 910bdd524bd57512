"""A study's executions, stage by stage: claimed, handed to an engine, tried again when lost, and recorded when complete."""

import os
import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.files import write_json
from helpers.locks import LockHolder
from helpers.sweep import progress, publication
from helpers.sweep.engines import Engine
from helpers.sweep.executions import Places, Sources, digest_of, reason_to_run, recorded_results, results_of, valid_record
from helpers.sweep.progress import Display
from helpers.sweep.study_file import Execution
from helpers.sweep.worker import Outcome
from helpers.tally import Tally

_TICK = 1.0  # seconds between two looks at what others do
_QUIET = 3  # looks at which nobody is at work before a sweep stops waiting for others


@dataclass(frozen=True)
class Rules:
    """What a sweep does about failures, and which part of the work is its own."""

    force: frozenset[str] = frozenset()
    retries: int = 2
    max_failures: int = 0  # stop after so many; 0 goes on with what does not depend on the failed ones
    share: slice = field(default_factory=lambda: slice(None))  # of the parts of each stage; the others are left to other sweeps


@dataclass
class Sweep:
    """One pass over a study; what it knows lies on disk, so that the next pass goes on where this one ended."""

    places: Places
    engine: Engine
    owner: LockHolder
    rules: Rules
    display: Display
    tallies: dict[str, Tally] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    left_to_others: int = 0
    ran: int = 0
    _attempts: dict[str, int] = field(default_factory=dict)
    _before: dict[Path, str] = field(default_factory=dict)  # of the stages that are complete: records, and the results that they had then

    def run(self, executions: Sequence[Execution]) -> None:
        """Execute what is not complete. A stage begins when all before it are complete; a failure holds back what comes after it."""
        groups = progress.stages(executions)
        self.tallies = {stage: Tally(len(members)) for stage, members in groups.items()}
        sources, upstream = Sources(self.places.root), {}
        own = {item.name for members in groups.values() for item in (members[self.rules.share] if members[0].part else members)}
        for stage, members in groups.items():
            todo = []
            for execution in members:
                inputs = sources.inputs_of(execution, upstream)
                reason = "forced" if execution.notebook.stem in self.rules.force else self._why(execution, inputs)
                if reason:
                    todo.append((execution, inputs, reason))
                else:
                    self.tallies[stage].done += 1
            self._say_complete(stage, members, todo)
            mine = [item for item in todo if item[0].name in own]
            self._run_stage(stage, mine, len(members))
            self.left_to_others = self._await([item for item in todo if item[0].name not in own])
            if self.failures or self.left_to_others:
                return
            for item in (item for item in members if not item.part):
                record = valid_record(item, self.places, sources.inputs_of(item, upstream)) or self.places.record(item)
                self._before[record] = publication.readable(record).get("results", "")
            upstream = self.after(upstream, stage, self.results(members, self.places, sources, upstream))

    def _overtaken(self) -> str:
        """Notebooks before this stage that another command has begun or run with other results since; "" where there are none."""
        found = [record.stem for record, results in self._before.items() if publication.readable(record).get("results", "") != results]
        return ", ".join(found)

    def _why(self, execution: Execution, inputs: Mapping[str, Any]) -> str:
        return reason_to_run(execution, self.places, inputs)

    @staticmethod
    def results(members: Sequence[Execution], places: Places, sources: Sources, upstream: Mapping[str, str]) -> str:
        """Digest what the complete executions of a stage found."""
        inputs = [(item, sources.inputs_of(item, upstream)) for item in members]
        found = [recorded_results(valid_record(item, places, known) or places.record(item), known) for item, known in inputs]
        return found[0] if len(found) == 1 else digest_of(found)

    @staticmethod
    def after(upstream: Mapping[str, str], stage: str, results: str) -> dict[str, str]:
        """Add what a stage found to what the next one rests on; the whole of a notebook stands for its parts."""
        return {name: found for name, found in upstream.items() if not name.endswith(progress.PARTS)} | {stage: results}

    def _say_complete(self, stage: str, members: Sequence[Execution], todo: Sequence[tuple]) -> None:
        waiting = {execution.name: reason for execution, _, reason in todo}
        if complete := len(members) - len(waiting):
            self.display.say(f"{stage}: {f'{complete} of {len(members)} ' if len(members) > 1 else ''}complete, nothing changed")
        for name, reason in waiting.items():
            self.display.say(f"{name}: {reason}")

    def _await(self, theirs: Sequence[tuple[Execution, dict[str, Any], str]]) -> int:
        """Wait for the share of other sweeps as long as one is at it; give how much is left when nobody is."""
        quiet = 0
        while (left := [item for item, inputs, _ in theirs if self._why(item, inputs)]) and quiet < _QUIET and not self.failures:
            quiet = 0 if any(self.owner.holder(item.name) for item in left) else quiet + 1
            self.engine.wait(_TICK)
        return len(left)

    def _run_stage(self, stage: str, todo: Sequence[tuple[Execution, dict[str, Any], str]], width: int) -> None:
        waiting, running = deque(todo), {}
        while (waiting or running) and not self._stopped():
            for _ in range(len(waiting)):
                if len(running) >= self.engine.slots:
                    break
                item = waiting.popleft()
                if not self.owner.claim(item[0].name):
                    waiting.append(item)  # another sweep is at it
                elif item[2] != "forced" and not self._why(item[0], item[1]):
                    self.owner.release(item[0].name)  # another sweep has completed it
                    self.tallies[stage].done += 1
                else:
                    running[item[0].name] = item
                    self._start(stage, item[0], width)
            now = [progress.where_it_is(self.places, item[0]) for item in running.values()]
            self.display.draw(progress.progress_table(self.tallies, self.engine.slots), now)
            for name, outcome in self.engine.wait(_TICK):
                item = running.pop(name)
                if self._finish(stage, item, outcome):
                    waiting.append(item)
                self.owner.release(name)
            if waiting and not running:
                waiting = self._not_completed_elsewhere(stage, waiting)

    def _not_completed_elsewhere(self, stage: str, waiting: deque) -> deque:
        left = deque(item for item in waiting if item[2] == "forced" or self._why(item[0], item[1]))
        for _ in range(len(waiting) - len(left)):
            self.tallies[stage].done += 1
        return left

    def _stopped(self) -> bool:
        return bool(self.rules.max_failures) and len(self.failures) >= self.rules.max_failures

    def _start(self, stage: str, execution: Execution, width: int) -> None:
        name = execution.name
        self._attempts[name] = self._attempts.get(name, 0) + 1
        self.tallies[stage].running += 1
        self._log(execution, "starts", f"attempt {self._attempts[name]}")
        root, staging = self.places.root, self.places.staging(execution)
        publication.withdraw(self.places.record(execution))
        shutil.rmtree(staging, ignore_errors=True)
        job = {
            "notebook": os.path.relpath(execution.notebook, root),  # so that the paths in the report are relative to the project
            "partial": os.path.relpath(self.places.partial(execution), root),
            "staging": os.path.relpath(staging, root),
            "place": os.path.relpath(progress.place_file(self.places, execution), root),
            "parameters": execution.parameters,
            "whole": not execution.part,
        }
        self.engine.submit(name, job, width)

    def _finish(self, stage: str, item: tuple[Execution, dict[str, Any], str], outcome: Outcome) -> bool:
        """Record how an execution ended; say whether it is to be tried again."""
        execution, inputs, _ = item
        tally, attempts = self.tallies[stage], self._attempts[execution.name]
        tally.running -= 1
        progress.place_file(self.places, execution).unlink(missing_ok=True)
        if outcome.kind == "done" and not self.owner.still_holds(execution.name):
            outcome = Outcome("lost", outcome.seconds, "another sweep took it over", "this one was halted for long")
        if outcome.kind == "done" and (others := self._overtaken()):
            told = f"another command runs {others} of this study with other values; run this one again when that is done"
            outcome = Outcome("error", outcome.seconds, "what it rests on was changed meanwhile", told)
        if outcome.kind == "done":
            try:
                self._complete(execution, inputs, outcome, attempts)
            except (OSError, ValueError) as fault:
                outcome = Outcome("error", outcome.seconds, "its report could not be kept", f"{type(fault).__name__}: {fault}")
            else:
                tally.done += 1
                tally.seconds.append(outcome.seconds)
                return False
        if outcome.kind == "lost" and attempts <= self.rules.retries:
            tally.retried += 1
            self.display.say(f"{execution.name}: {outcome.where} ({outcome.error}); it is tried again")
            self._log(execution, "lost", f"{outcome.where} ({outcome.error})")
            return True
        tally.failed += 1
        self._fail(execution, outcome, attempts)
        return False

    def _complete(self, execution: Execution, inputs: dict[str, Any], outcome: Outcome, attempts: int) -> None:
        """Publish what it made, and write the record last of all: a kill before it makes the notebook run again."""
        partial, report, record = self.places.partial(execution), self.places.report(execution), self.places.record(execution)
        staging = self.places.staging(execution)
        story = publication.staged_story(staging, execution.notebook.stem)
        files = publication.publish(staging, self.places.published(execution), report, record)
        with open(partial, "rb+") as written:
            os.fsync(written.fileno())
        os.replace(partial, report)
        kept = [] if execution.part else publication.work_files(story, self.places.work(execution))  # parts share what the whole makes
        made = {"published": publication.digests([*files, report], report.parent), "work": publication.digests(kept, record.parent)}
        known = {"status": "complete", "inputs": inputs, "results": results_of(story, made, inputs), **made}
        publication.reinstate(record, known | {"seconds": outcome.seconds, "attempts": attempts})
        self.places.failure(execution).unlink(missing_ok=True)
        self.ran += 1
        self.display.say(f"{execution.name}: done in {outcome.seconds:.0f} s")
        self._log(execution, "done", f"in {outcome.seconds:.1f} s")

    def _fail(self, execution: Execution, outcome: Outcome, attempts: int) -> None:
        partial = os.path.relpath(self.places.partial(execution), self.places.root)
        message = f"{execution.name}: {outcome.where}\n  {outcome.error}\n  partial report: {partial}"
        self.failures.append(message)
        self.display.say(f"{execution.name}: failed, {outcome.where}")
        self._log(execution, "failed", f"{outcome.where} ({outcome.error}), {partial}")
        try:
            write_json(self.places.failure(execution), {"message": message, "attempts": attempts, "seconds": outcome.seconds})
        except OSError:
            return  # a full disk: the terminal has the message

    def _log(self, execution: Execution, event: str, detail: str) -> None:
        progress.log_event(self.places.work(execution) / "sweep.log", event, execution.name, detail)
