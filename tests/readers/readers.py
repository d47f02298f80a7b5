#!/usr/bin/env python3
"""Opens the files of a run with the programs that they are written for.

readers.py RINGMASTER READER, where READER is tensorboard, pandas, h5py or prometheus. A small run is trained first.
prometheus reads the run's dashboard with promtool, if that is installed, and with the package prometheus_client.

Exits with 77, which CTest calls skipped, if the reader is missing.
"""

import importlib.util
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

STEPS, INTERVAL, TOKENS_PER_STEP = 40, 10, 4 * 64
CONFIG = """run: {{device: cpu, directory: {run}}}
model: {{context: 64, layers: 1, width: 32, heads: 2}}
optimizer: {{lr: 0.002}}
data: {{path: {corpus}}}
train: {{batch_size: 4, steps: {steps}, log_interval: {interval}, eval_interval: 20}}
"""


def need(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            print("skipped: there is no package", module)
            sys.exit(77)


class Run:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.directory, self.corpus = os.path.join(folder, "run"), os.path.join(folder, "corpus.h5")
        text = os.path.join(folder, "text.txt")
        with open(text, "w", encoding="utf-8") as out:
            out.write("The quick brown fox jumps over the lazy dog: na\u00efve \u96ea.\n" * 400)
        self("data", "prepare", "--input", text, "--tokenizer", "bytes", "--validation-fraction", "0.1", "--output",
             self.corpus)
        self.text = text

    # Runs the program, which must succeed.
    def __call__(self, *words):
        done = subprocess.run([self.program, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def config(self, steps=STEPS):
        path = os.path.join(self.folder, "run.yaml")
        with open(path, "w", encoding="utf-8") as out:
            out.write(CONFIG.format(run=self.directory, corpus=self.corpus, steps=steps, interval=INTERVAL))
        return path

    def train(self):
        self("train", self.config())
        return self

    def records(self, group):
        with open(os.path.join(self.directory, "metrics.jsonl"), encoding="utf-8") as lines:
            return [r for r in map(json.loads, lines) if r["group"] == group]


def tensorboard(run):
    need("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2
    events = EventAccumulator(run.train().directory)
    events.Reload()
    tags = set(events.Tags()["scalars"])
    for tag, group, name in (("loss/train", "train", "loss"), ("loss/validation", "validation", "loss"),
                             ("optimizer/lr", "train", "lr"), ("optimizer/grad_norm", "train", "grad_norm"),
                             ("speed/tokens_per_second", "train", "tokens_per_second"),
                             ("data/tokens", "train", "tokens"), ("memory/peak", "train", "memory_peak")):
        assert tag in tags, (tag, sorted(tags))
        ours = {r["step"]: r[name] for r in run.records(group)}
        theirs = {e.step: e.value for e in events.Scalars(tag)}
        assert ours.keys() == theirs.keys() and len(ours) > 1, (tag, ours, theirs)
        assert all(math.isclose(ours[s], theirs[s], rel_tol=1e-6) for s in ours), (tag, ours, theirs)
    assert not any(tag.startswith("train/") for tag in tags), sorted(tags)
    data = events.summary_metadata["_hparams_/session_start_info"].plugin_data
    assert data.plugin_name == "hparams"
    start = plugin_data_pb2.HParamsPluginData.FromString(data.content)
    settings = start.session_start_info.hparams
    assert settings["optimizer.lr"].number_value == 0.002, settings
    assert settings["train.steps"].number_value == STEPS
    assert settings["model.attention.kind"].string_value == "dense"
    assert "data.path" not in settings and "run.directory" not in settings
    assert "layers: 1" in events.Tensors("config")[0].tensor_proto.string_val[0].decode()


def pandas(run):
    need("pandas")
    import pandas as pd
    directory = run.train().directory
    records = pd.read_json(os.path.join(directory, "metrics.jsonl"), lines=True)  # as in docs/runs.md
    train = records.query("group == 'train'")
    assert list(train["step"]) == list(range(INTERVAL, STEPS + 1, INTERVAL)), train
    assert list(train["tokens"]) == [s * TOKENS_PER_STEP for s in train["step"]]
    assert train["loss"].is_monotonic_decreasing and train["loss"].iloc[0] < 6
    table = os.path.join(run.folder, "metrics.csv")
    run("metrics", "export", directory, "--format", "csv", "--output", table)
    csv = pd.read_csv(table)
    assert len(csv) == len(records)
    for name in ("loss", "lr", "tokens_per_second"):
        pairs = zip(csv.query("group == 'train'")[name], train[name], strict=True)
        assert all(math.isclose(a, b, rel_tol=1e-12) for a, b in pairs), name


def h5py(run):
    need("h5py", "numpy")
    import h5py as h5
    import numpy as np
    with open(run.text, "rb") as text, h5.File(run.corpus) as corpus:
        tokens = np.concatenate([corpus[split]["tokens"][:] for split in ("train", "validation")])
        assert bytes(t for t in tokens if t < 256) == text.read()
        assert len(corpus["validation"]["tokens"]) > 0
    folder = os.path.join(run.train().directory, "checkpoints", f"step-{STEPS:09d}")
    with h5.File(os.path.join(folder, "shard-00000.h5")) as shard:
        weights = shard["model.embedding.tokens.weight"]
        assert weights.shape[1] == 32 and weights.dtype == np.float32, weights
        with open(weights.file.filename, "rb") as raw:
            raw.seek(weights.id.get_offset())
            assert raw.read(weights[:].nbytes) == weights[:].tobytes() and weights[:].std() > 0
        assert shard["optimizer.v.embedding.tokens.weight"][:].min() >= 0


def get(url, accept):
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), timeout=20) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def check_by_promtool(text):
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stdout + done.stderr, done.stdout + done.stderr


def check_by_client(text, open_metrics):
    from prometheus_client import parser
    from prometheus_client.openmetrics import parser as open_parser
    families = (open_parser if open_metrics else parser).text_string_to_metric_families(text)
    samples = {s.name: s.value for family in families for s in family.samples}
    assert samples["ringmaster_processes"] == 1 and samples["ringmaster_restarts_total"] == 0, samples
    assert samples["ringmaster_step"] >= INTERVAL and 0 < samples["ringmaster_loss"] < 6, samples
    assert samples["ringmaster_tokens_total"] == samples["ringmaster_step"] * TOKENS_PER_STEP


def look(url):
    kind, text = get(url + "metrics", "application/openmetrics-text; version=1.0.0")
    old_kind, old_text = get(url + "metrics", "text/plain")
    assert kind.startswith("application/openmetrics-text; version=1.0.0"), kind
    assert old_kind.startswith("text/plain; version=0.0.4"), old_kind
    assert get(url + "healthz", "*/*")[1].strip() == "ok"
    return text, old_text


def prometheus(run):
    tool, client = shutil.which("promtool"), importlib.util.find_spec("prometheus_client")
    if not tool and not client:
        print("skipped: neither promtool nor the package prometheus_client is there")
        sys.exit(77)
    launch = [run.program, "launch", "--nproc-per-node", "1", "--dashboard", "0", "--", "train", run.config(10 ** 6)]
    log = os.path.join(run.folder, "log")
    with open(log, "w", encoding="utf-8") as out:
        job = subprocess.Popen(launch, stdout=out, stderr=out)
    try:
        url = wait_for(lambda: re.search(r"the dashboard is at (http://\S+/)", read(log)), job, log)[1]
        wait_for(lambda: "\nringmaster_loss " in get(url + "metrics", "text/plain")[1], job, log)
        text, old_text = look(url)
        if tool:
            check_by_promtool(old_text)
        if client:
            check_by_client(text, True)
            check_by_client(old_text, False)
    finally:
        job.send_signal(signal.SIGTERM)
        job.wait()


def read(path):
    with open(path, encoding="utf-8", errors="replace") as text:
        return text.read()


def wait_for(what, job, log):
    for _ in range(600):
        assert job.poll() is None, read(log)
        if found := what():
            return found
        time.sleep(0.1)
    raise AssertionError("nothing after a minute: " + read(log))


if __name__ == "__main__":
    readers = {f.__name__: f for f in (tensorboard, pandas, h5py, prometheus)}
    with tempfile.TemporaryDirectory() as folder:
        readers[sys.argv[2]](Run(sys.argv[1], folder))
    print("ok")
