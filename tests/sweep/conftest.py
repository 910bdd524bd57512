"""An engine for tests of the launcher."""

import json

from helpers.sweep.worker import Outcome


class Imagined:
    """An engine whose jobs are done at once, unless ``ends`` says how a notebook or a part of it ends."""

    def __init__(self, root, slots=2):
        self.root, self.slots, self.ends, self.started, self.ready, self.tables = root, slots, {}, [], [], {}
        self.meanwhile = lambda name: None

    def submit(self, name, job, width):
        self.started.append(name)
        partial = self.root / job["partial"]
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps({"cells": []}))
        if table := self.tables.get(name):
            folder = self.root / job["parameters"]["reports_dir"] / "s"
            (folder / "story").mkdir(parents=True, exist_ok=True)
            (folder / "t.csv").write_text(table)
            story = [{"kind": "table", "name": "t", "path": "t.csv"}]
            (folder / "story" / f"{name.partition('/')[0]}.json").write_text(json.dumps(story))
        self.meanwhile(name)
        ends = self.ends.get(name, [])
        self.ready.append((name, ends.pop(0) if ends else Outcome("done", 1.0)))

    def wait(self, seconds):
        ready, self.ready = self.ready, []
        return ready

    def close(self):
        self.closed = True
