"""An engine for tests of the launcher."""

import json

from helpers.sweep.worker import Outcome


class Imagined:
    """An engine whose jobs are done at once, unless ``ends`` says how a notebook or a part of it ends."""

    def __init__(self, root, slots=2):
        self.root, self.slots, self.ends, self.started, self.ready, self.tables = root, slots, {}, [], [], {}
        self.work_files, self.jobs = {}, {}
        self.meanwhile = lambda name: None

    def submit(self, name, job, width):
        self.started.append(name)
        self.jobs[name] = job
        partial = self.root / job["partial"]
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
        if table := self.tables.get(name):
            folder = self.root / job["staging"]
            (folder / "story").mkdir(parents=True, exist_ok=True)
            (folder / f"{name.replace('/', '-')}.csv").write_text(table)
            story = [{"kind": "table", "name": name, "path": f"{name.replace('/', '-')}.csv", "reading": "", "rows": 1}]
            story += [{"kind": "work_file", "path": path} for path in self.work_files.get(name, [])]
            (folder / "story" / f"{name.partition('/')[0]}.json").write_text(json.dumps(story))
        self.meanwhile(name)
        ends = self.ends.get(name, [])
        self.ready.append((name, ends.pop(0) if ends else Outcome("done", 1.0)))

    def wait(self, seconds):
        ready, self.ready = self.ready, []
        return ready

    def close(self):
        self.closed = True
