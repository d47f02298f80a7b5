"""Small training runs of the program that fail on purpose, and comparisons with undisturbed runs."""

import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile

STEPS, INTERVAL = 12, 4
LIMIT = 600  # seconds of one run, on a busy machine
CONFIG = """
run: {name: t, device: cpu}
model: {context: 16, layers: 2, width: 32, heads: 4}
data: {path: corpus.h5}
train: {batch_size: 8, micro_batch: 1, steps: %d, eval_interval: 6, log_interval: 1, bucket_bytes: 16384}
checkpoint: {interval: %d, keep_last: 100}
""" % (STEPS, INTERVAL)

# Combines features that have state. With this low spike score, some steps after the first 32 count as spikes.
FEATURES = ["optimizer.kind=muon", "train.ema=0.9", "model.dropout=0.1", "train.batch_size=[[0, 8], [4096, 16]]",
            "data.path=", "data.mixture=[{path: corpus.h5}, {path: other.h5, weight: [[0, 0.2], [2048, 1]]}]",
            "data.packing={documents: true, best_fit: 64}", "train.spike_deviations=1.6", "train.max_bad_steps=1000",
            "train.steps=56", "train.micro_batch=4"]
IMPORTANCE = ["model.context=256", "model.positions=rope", "train.batch_size=2",
              "model.attention={kind: block_sparse, block: 64, rules: [{pattern: importance, keep: 3, interval: 3, "
              "explore: 1, seed: 5}]}"]

STAGES = ["parallel.pp=2", "model.tied_embeddings=false"]
# Snapshots in the launcher's memory make a lost island repeat its steps with the same bits.
ISLANDS = ["parallel.islands=2", "parallel.local_steps=4", "checkpoint.memory_interval=2"]

# Name of the layout: (number of processes, settings).
LAYOUTS = {
    "one": (1, []),
    "dp2": (2, []),
    "cp2": (2, ["parallel.cp=2"]),
    "zero3": (2, ["parallel.zero=3"]),
    "tp2": (2, ["parallel.tp=2"]),
    "kept2": (2, ["checkpoint.memory_interval=2"]),
    "dp4": (4, []),
    "zero3-4": (4, ["parallel.zero=3"]),
    "cp2-tp2": (4, ["parallel.cp=2", "parallel.tp=2"]),
    "skip": (1, [*FEATURES, "train.on_bad_step=skip"]),
    "rollback2": (2, [*FEATURES, "train.on_bad_step=rollback", "parallel.zero=1"]),
    "important2": (2, [*IMPORTANCE, "parallel.cp=2"]),
    "int8-2": (2, ["parallel.compress=int8"]),
    "stages2": (2, [*STAGES, "parallel.zero=1"]),
    "stages4": (4, [*STAGES, "parallel.zero=2", "parallel.dp=2"]),
    "slices2": (2, [*STAGES, "parallel.pp_slices=2", "model.positions=rope"]),
    "islands2": (2, [*ISLANDS, "parallel.outer_bits=4"]),
    "islands4": (4, [*ISLANDS, "parallel.zero=1", "parallel.outer_fragments=2", "parallel.outer_delay=1"]),
}

# Long runs, whose workers are killed one after another. On a GPU, the host runs ahead of the device in these steps.
SPARSE = ["train.eval_interval=0", "checkpoint.interval=0"]  # without evaluations and saves in between
ON_GPU = [*SPARSE, "run.device=cuda", "run.tuning=rule", "train.cuda_graph=off", "train.batch_size=64",
          "train.micro_batch=32", "train.bucket_bytes=4194304", "model.context=512", "model.layers=6",
          "model.width=256", "model.heads=4"]
LONG = {
    "long3": (3, [*SPARSE, "train.steps=500", "train.batch_size=12"]),
    "dp2-gpu": (2, [*ON_GPU, "train.steps=1200"]),
    "cp2-gpu": (2, [*ON_GPU, "train.steps=400", "parallel.cp=2"]),
}


def layout_of(name):
    return LONG[name] if name in LONG else LAYOUTS[name]


def steps_of(layout):
    """Returns the last step of a run of this layout."""
    return max([STEPS] + [int(s.split("=")[1]) for s in layout_of(layout)[1] if s.startswith("train.steps=")])


class Runs:
    """A folder with a corpus and settings. Every run has its own folder in it."""

    def __init__(self, binary):
        self.binary = os.path.abspath(binary)
        self.folder = tempfile.mkdtemp(prefix="ring_recovery_")
        self.calm = {}  # directory of the undisturbed run, by layout
        with open(os.path.join(self.folder, "text.txt"), "w") as f:
            f.writelines(f"line {i * i % 97} of a text for training\n" for i in range(400))
        with open(os.path.join(self.folder, "t.yaml"), "w") as f:
            f.write(CONFIG)
        with open(os.path.join(self.folder, "other.txt"), "w") as f:
            f.writelines(f"{i} times {i} is {i * i}\n" for i in range(400))
        for text, corpus in [("text.txt", "corpus.h5"), ("other.txt", "other.h5")]:
            self.run("data", "prepare", "--input", text, "--tokenizer", "bytes", "--validation-fraction", "0.1",
                     "--output", corpus)
        self.run("launch", "--make-secret", "secret")

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *words):
        done = subprocess.run([self.binary, *words], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {done.stdout.decode()}")
        return done.stdout.decode()

    def start(self, directory, layout, log, faults=None, nodes=None, changes=()):
        """Starts an agent. nodes: the number of nodes, and the port of the rendezvous."""
        world, settings = layout_of(layout)
        words = [self.binary, "launch", "--threads-per-worker", "1", "-n", str(world // (nodes[0] if nodes else 1))]
        if nodes:
            words += ["--nnodes", str(nodes[0]), "--rdzv-endpoint", f"127.0.0.1:{nodes[1]}", "--secret-file", "secret"]
        if faults:
            words += ["--inject", faults]
        words += ["--", "train", "t.yaml", f"run.directory={self.folder}/{directory}", *settings,
                  *changes]
        with open(os.path.join(self.folder, log), "ab") as out:
            return subprocess.Popen(words, cwd=self.folder, stdout=out, stderr=out)

    def text(self, name):
        try:
            with open(os.path.join(self.folder, name), errors="replace") as f:
                return f.read()
        except FileNotFoundError:
            return ""

    def undisturbed(self, layout):
        """Returns the directory of an undisturbed run of this layout, which is trained at the first call."""
        if layout not in self.calm:
            agent = self.start("calm-" + layout, layout, "calm-" + layout + ".log")
            if agent.wait(LIMIT) != 0:
                raise RuntimeError(self.text("calm-" + layout + ".log"))
            if "train.spike_deviations" in str(layout_of(layout)) and not self.bad_steps("calm-" + layout):
                raise RuntimeError(f"{layout} has no bad step to recover from")
            self.calm[layout] = "calm-" + layout
        return self.calm[layout]

    def steps(self, directory):
        """Returns the number of records of steps, including repeated steps."""
        return self.text(directory + "/metrics.jsonl").count('"group":"train"')

    def losses(self, directory):
        records = [json.loads(line) for line in self.text(directory + "/metrics.jsonl").splitlines()]
        return [(r["group"], r["step"], r["loss"]) for r in records if r["group"] in ("train", "validation")]

    def bad_steps(self, directory):
        return self.text(directory + "/metrics.jsonl").count('"group":"bad_step"')

    def weights(self, directory, layout):
        """Returns names, offsets and hashes of all tensors of the last step. `checkpoint verify` checks the hashes."""
        manifest = f"{directory}/checkpoints/step-{steps_of(layout):09d}/manifest.json"
        return json.loads(self.text(manifest) or "{}").get("tensors")

    def differences(self, directory, layout):
        calm = self.undisturbed(layout)
        found = []
        if self.losses(directory) != self.losses(calm) or not self.losses(calm):
            found.append("losses differ from those of the undisturbed run")
        if self.weights(directory, layout) != self.weights(calm, layout) or not self.weights(calm, layout):
            found.append("the last weights differ from those of the undisturbed run")
        try:
            self.run("checkpoint", "verify", directory)
        except RuntimeError as e:
            found.append(f"unreadable checkpoint: {e}")
        stale = glob.glob(os.path.join(self.folder, directory, "checkpoints", "*.tmp*"))
        return found + [f"left behind: {path}" for path in stale]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            return [int(p) for p in f.read().split()]
    except OSError:
        return []


def processes_of(directory):
    """Returns the processes that were started for this run (given by its whole path), found by their command lines."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as f:
                if f"run.directory={directory}".encode() in f.read().split(b"\0"):
                    found.append(int(path.split("/")[2]))
        except OSError:
            pass
    return found


def listeners_of(pids):
    """Returns the inodes of the sockets at which these processes listen."""
    own = set()
    for pid in pids:
        for fd in glob.glob(f"/proc/{pid}/fd/*"):
            try:
                own.update(re.findall(r"socket:\[(\d+)\]", os.readlink(fd)))
            except OSError:
                pass
    return own & listening()


def listening():
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as f:
                rows = [line.split() for line in f.readlines()[1:]]
        except OSError:
            continue
        found.update(row[9] for row in rows if row[3] == "0A")
    return found


def end(process):
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait()
