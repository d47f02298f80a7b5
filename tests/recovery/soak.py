#!/usr/bin/env python3
"""Trains for minutes under Poisson failures, with two agents of two workers each, and compares goodput with the
prediction of a model of restarts.

    tests/recovery/soak.py BINARY [--minutes 30] [--mean 60] [--seed 1] [--points 2] [--keep]

A random rank is killed every --mean seconds on average (--inject). Goodput is the time that the steps that count would
have taken undisturbed, divided by the wall time. The model is that of Daly, "A higher order estimate of the optimum
checkpoint interval for restart dumps", 2006, equation 9; its first order is the estimate of Young, 1974. With T seconds
of steps between two saves, which stall steps for d, a restart that takes R, and M seconds between failures,

    goodput = T / (M e^(R/M) (e^((T+d)/M) - 1))

T, d, R and M are measured, so that a difference shows lost time that the model does not explain. Violations, with exit
code 1: goodput, measured here or as the job reports it, more than --points percentage points off the model; losses that
differ from those of an undisturbed run; an unreadable checkpoint; growing memory or file descriptors of an agent, or of
its worker that lived longest; leftover processes.
"""

import argparse
import bisect
import collections
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time

import runs

SAMPLE = 1.0  # seconds between two samples of the agents
CONFIG = """
run: {name: t, device: cpu}
model: {context: 32, layers: 2, width: 64, heads: 4}
data: {path: corpus.h5}
train: {batch_size: 8, micro_batch: 2, steps: 100000000, eval_interval: 0, log_interval: 1}
schedule: {kind: constant}
checkpoint: {interval: %d, keep_last: 2}
"""


class Usage:
    """Memory in KiB and open files of a process, sampled over time."""

    def __init__(self):
        self.memory, self.files = [], []

    def after(self, seconds):
        later, begin = Usage(), math.ceil(seconds / SAMPLE)
        later.memory, later.files = self.memory[begin:], self.files[begin:]
        return later

    def sample(self, pid):
        try:
            with open(f"/proc/{pid}/smaps_rollup") as f:
                memory = int(re.search(r"Private_Dirty:\s+(\d+)", f.read()).group(1))
            self.files.append(len(os.listdir(f"/proc/{pid}/fd")))
            self.memory.append(memory)
        except (OSError, AttributeError):
            pass


class Agent:
    """An agent that is watched: its output, with the time of each line, and its resource usage."""

    def __init__(self, command, folder):
        self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, errors="replace")
        self.lines, self.own, self.workers = [], Usage(), collections.defaultdict(Usage)
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip()))

    def sample(self):
        self.own.sample(self.process.pid)
        for pid in runs.children(self.process.pid):
            self.workers[pid].sample(pid)

    def oldest_worker(self):
        return max(self.workers.values(), key=lambda u: len(u.files), default=Usage())

    def times(self, pattern):
        """Returns the times of lines that match. Leaves out last lines of workers, which the agent repeats."""
        return [at for at, line in list(self.lines) if re.search(pattern, line) and "  | " not in line]


def growth(samples):
    """Returns the median of the last fifth minus that of the second: caches are filled in the first fifth."""
    fifth = max(1, len(samples) // 5)
    return statistics.median(samples[-fifth:]) - statistics.median(samples[fifth:2 * fifth])


def restarts_of(agents, pace):
    """Returns the times of kills, and for each restart the seconds from the kill until steps continued."""
    kills = sorted(t for a in agents for t in a.times(r"--inject: kill.*: killing rank"))
    events = [(at, True) for at in kills] + [(at, False) for at in agents[0].times(r"restart \d+ of this job;")]
    steps, took, killed = agents[0].times(r"^step \d+/"), [], None
    for at, is_kill in sorted(events):
        first = steps[bisect.bisect(steps, at):][:1]
        if not is_kill and killed is not None and first:
            took.append(first[0] - killed - pace)
        killed = at if is_kill else None
    return kills, took


def pace_of(steps, interval):
    """Returns the mean seconds between the ends of two steps with neither a save nor a restart between them."""
    pairs = zip(steps, steps[1:])
    return statistics.mean(b["time"] - a["time"] for a, b in pairs if a["step"] % interval != 0)


def records(folder, directory, group):
    with open(os.path.join(folder, directory, "metrics.jsonl")) as f:
        found = [json.loads(line) for line in f]
    return [r for r in found if r["group"] == group]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--mean", type=float, default=60, help="seconds between failures")
    parser.add_argument("--interval", type=int, default=400, help="steps between saves")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--points", type=float, default=2, help="percentage points that goodput may differ")
    parser.add_argument("--keep", action="store_true", help="keep the folder of the run")
    a = parser.parse_args()
    all_runs = runs.Runs(a.binary)
    with open(os.path.join(all_runs.folder, "t.yaml"), "w") as f:
        f.write(CONFIG % a.interval)
    port = runs.free_port()
    command = [all_runs.binary, "launch", "--nnodes", "2", "-n", "2", "--threads-per-worker", "1", "--rdzv-endpoint",
               f"127.0.0.1:{port}", "--secret-file", "secret", "--max-restarts", "1000000", "--inject",
               f"{a.seed}:kill@rank=any,mean={a.mean}s", "--", "train", "t.yaml",
               f"run.directory={all_runs.folder}/soak"]
    begin = time.monotonic()
    agents = [Agent(command, all_runs.folder)]
    time.sleep(0.5)
    agents.append(Agent(command, all_runs.folder))
    while time.monotonic() < begin + 60 * a.minutes and all(g.process.poll() is None for g in agents):
        time.sleep(SAMPLE)
        for g in agents:
            g.sample()
    early = [g.process.returncode for g in agents if g.process.poll() is not None]
    told = time.monotonic()
    agents[0].process.send_signal(signal.SIGTERM)
    for g in agents:
        try:
            g.process.wait(60)
        except subprocess.TimeoutExpired:
            runs.end(g.process)
        g.thread.join(5)
    violations = report(a, all_runs, agents, told)
    violations += [f"an agent ended early, with {code}" for code in early]
    for v in violations:
        print("VIOLATION:", v)
    if not a.keep:
        all_runs.remove()
    print(f"{len(violations)} violations")
    return 1 if violations else 0


def undisturbed_losses(all_runs, steps, interval):
    all_runs.run("launch", "-n", "4", "--threads-per-worker", "1", "--", "train", "t.yaml", f"train.steps={steps}",
                 f"run.directory={all_runs.folder}/calm", f"checkpoint.interval={interval}")
    return {r["step"]: r["loss"] for r in records(all_runs.folder, "calm", "train")}


def report(a, all_runs, agents, told):
    violations = []
    first_step = agents[0].times(r"^\S+ I (\[rank 0\] )?memory: ")[0]  # just before the first step
    steps = records(all_runs.folder, "soak", "train")
    saves = [r for r in records(all_runs.folder, "soak", "checkpoint") if "error" not in r]
    pace = pace_of(steps, a.interval)
    kills, took = restarts_of(agents, pace)
    wall = told - first_step
    between, stall = a.interval * pace, statistics.mean(r["stall_seconds"] for r in saves)
    goodput = len(steps) * pace / wall
    said = [float(m.group(1)) / 100 for _, line in agents[0].lines
            if (m := re.search(r"this job: .* goodput ([\d.]+) %", line))]
    if kills and took:
        restart, mean = statistics.mean(took), wall / len(kills)
        model = between / (mean * math.exp(restart / mean) * (math.exp((between + stall) / mean) - 1))
    else:
        restart, mean, model = 0, math.inf, between / (between + stall)
        violations.append("nothing was killed: train longer")
    rows = [("wall time", f"{wall:.1f} s"), ("steps that count", f"{len(steps)} of {1000 * pace:.2f} ms"),
            ("kills", f"{len(kills)}, one in {mean:.1f} s (asked for: {a.mean:.0f} s)"),
            ("restart R", f"{restart:.2f} s (mean of {len(took)})"),
            ("between saves T, stall d", f"{between:.2f} s, {1000 * stall:.1f} ms"),
            ("goodput, measured", f"{100 * goodput:.2f} %"), ("goodput, model", f"{100 * model:.2f} %"),
            ("goodput, as the job says", f"{100 * said[-1]:.2f} %" if said else "nothing")]
    for value in [goodput] + (said[-1:] or [math.nan]):
        if not abs(value - model) <= a.points / 100:
            violations.append(f"goodput of {100 * value:.2f} % is {100 * (value - model):+.2f} points off the model")
    for i, g in enumerate(agents):
        worker = g.oldest_worker().after(2 * between)  # its first save allocates memory for all saves
        for name, usage, most in [(f"agent {i}", g.own, 1024), (f"worker of agent {i}", worker, 4096)]:
            if len(usage.memory) < 10:
                violations.append(f"{name} was seen for {len(usage.memory)} s only: train longer")
                continue
            more, files = growth(usage.memory), growth(usage.files)
            rows.append((name, f"{statistics.median(usage.memory)} KiB ({more:+.0f}), "
                               f"{statistics.median(usage.files):.0f} descriptors ({files:+.0f})"))
            if more > most or files > 0:
                violations.append(f"{name} grows: {more:+.0f} KiB, {files:+.0f} descriptors")
    left = runs.processes_of(f"{all_runs.folder}/soak")
    violations += [f"process {pid} is left" for pid in left]
    try:
        all_runs.run("checkpoint", "verify", f"{all_runs.folder}/soak")
    except RuntimeError as e:
        violations.append(f"unreadable checkpoint: {e}")
    compared = min(steps[-1]["step"], 2000)
    calm = undisturbed_losses(all_runs, compared, a.interval)
    different = [r["step"] for r in steps if r["step"] <= compared and r["loss"] != calm.get(r["step"])]
    rows.append(("losses", f"{compared - len(different)} of the first {compared} equal the undisturbed run's"))
    if different or not steps:
        violations.append(f"losses differ from step {different[0] if different else 0} on")
    for name, value in rows:
        print(f"{name:28} {value}")
    return violations


if __name__ == "__main__":
    sys.exit(main())
