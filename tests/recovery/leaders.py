#!/usr/bin/env python3
"""Takes node 0 or a worker away from small jobs. Nodes are network namespaces of this machine (scripts/cluster.py).

    tests/recovery/leaders.py BINARY [--keep]

For each case, measures the time until the remaining nodes train again, and checks which nodes do. A node that is cut
off has no proof that the others have ended, and must not train beside a majority. Workers that survive a killed worker
or agent must keep running. At the end of each case, the run is complete, and every step's loss is that of an
undisturbed run: exactly while as many nodes train, otherwise to rounding. If a new worker has replaced each lost one,
the tensors of the last checkpoint are also those of the undisturbed run. Prints a table. Exits with 1 if a requirement
was violated, and with 77 if the machine permits no such network.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import runs

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import cluster  # noqa: E402

STEPS = 300
SILENCE = 4  # seconds after which a node counts as lost
SETTINGS = [f"train.steps={STEPS}", "train.batch_size=12", "checkpoint.interval=20"]
SLOW = "1:slow@rank=all,phase=data,wait=60ms,attempt=each"  # so that the run lasts longer than the silence


class Job:
    def __init__(self, all_runs, name, nodes, workers):
        self.all_runs, self.name, self.workers = all_runs, name, workers
        self.nodes = [cluster.Node(f"node{i}", f"10.73.0.{i + 1}") for i in range(nodes)]
        self.bridge = cluster.connect_by_bridge(self.nodes, None)
        self.agents = [self.start(i) for i in range(nodes)]
        self.same_ranks = False  # true if as many workers as before continue after each loss

    def start(self, i, log=None):
        words = [self.all_runs.binary, "launch", "--nnodes", f"1:{len(self.nodes)}", "-n", str(self.workers),
                 "--rdzv-endpoint", "10.73.0.1:29400", "--secret-file", "secret", "--threads-per-worker", "1",
                 "--inject", SLOW, "--rdzv-conf", f"keep_alive_timeout={SILENCE},last_call_timeout=60", "--", "train",
                 "t.yaml", f"run.directory={self.all_runs.folder}/{self.name}", *SETTINGS]
        with open(f"{self.all_runs.folder}/{log or self.log(i)}", "wb") as out:
            return subprocess.Popen(self.nodes[i].command(*words), cwd=self.all_runs.folder, stdout=out, stderr=out)

    def log(self, i):
        return f"{self.name}-node{i}.log"

    def says(self, i, text):
        return text in self.all_runs.text(self.log(i))

    def await_true(self, what, condition, seconds=120):
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise RuntimeError(f"{what}: not within {seconds} s")
            time.sleep(0.01)

    def records(self):
        lines = self.all_runs.text(f"{self.name}/metrics.jsonl").split("\n")
        return [json.loads(line) for line in lines[:-1]]

    def steps_after_restart(self, restarts):
        all_records = self.records()
        begin = [i for i, r in enumerate(all_records) if r["group"] == "restart" and r["restarts"] == restarts]
        return sum(r["group"] == "train" for r in all_records[begin[0]:]) if begin else 0

    def await_step(self, step):
        self.await_true(f"step {step}", lambda: any(r["group"] == "train" and r["step"] >= step
                                                    for r in self.records()))

    def seconds_to_next_step(self, restarts=1):
        begin = time.monotonic()
        self.await_true(f"a step after restart {restarts}", lambda: self.steps_after_restart(restarts) > 0)
        return time.monotonic() - begin

    def kill(self, i):
        # nsenter executes the agent, whose worker dies with it
        self.agents[i].kill()
        self.agents[i].wait()

    def workers_of(self, nodes):
        return [runs.children(self.agents[i].pid) for i in nodes]

    def check_same(self, before, nodes, when):
        if before != self.workers_of(nodes):
            raise RuntimeError(f"workers did not keep running after {when}")

    def cut(self, i, state):
        self.nodes[i].run("ip", "link", "set", "eth0", state)

    def stop(self):
        for agent in self.agents:
            agent.kill()
            agent.wait()
        for node in [*self.nodes, self.bridge]:
            node.stop()


def tensors(all_runs, directory):
    """Returns names, offsets and hashes of all tensors of the last step. `checkpoint verify` checks the hashes."""
    return json.loads(all_runs.text(f"{directory}/checkpoints/step-{STEPS:09d}/manifest.json")).get("tensors")


def differences(job, calm, calm_tensors):
    """Returns what is wrong with the finished run. `calm`: losses of the undisturbed run by step."""
    losses, found = {}, []
    for r in job.records():
        if r["group"] == "train":
            losses[r["step"]] = r["loss"]
    if sorted(losses) != list(range(1, STEPS + 1)):
        found.append(f"{len(losses)} steps instead of {STEPS}")
    restarts = [r["step"] for r in job.records() if r["group"] == "restart"]
    for step, loss in losses.items():
        slack = 0 if job.same_ranks or not restarts or step <= restarts[0] else 1e-4 * calm[step]
        if not abs(loss - calm[step]) <= slack:
            found.append(f"loss {loss} of step {step} instead of {calm[step]}")
    job.all_runs.run("checkpoint", "verify", job.name)
    if job.same_ranks and tensors(job.all_runs, job.name) != calm_tensors:
        found.append("the last tensors differ from those of the undisturbed run")
    return found[:3]


def agent_killed(job):
    """The workers of the other nodes keep running, with new ranks."""
    others = range(1, len(job.nodes))
    before = job.workers_of(others)
    job.kill(0)
    seconds = job.seconds_to_next_step()
    job.check_same(before, others, "the loss of node 0")
    return seconds, others


def agent_replaced(job):
    """The workers of node 0 wait until a new agent has joined."""
    job.same_ranks = True
    before = job.workers_of([0])
    job.kill(1)
    job.agents[1] = job.start(1)
    seconds = job.seconds_to_next_step()
    job.check_same(before, [0], "the loss of node 1")
    return seconds, range(len(job.nodes))


def killed_twice(job):
    before = job.workers_of([2])
    job.kill(0)
    first = job.seconds_to_next_step()
    job.kill(1)
    seconds = max(first, job.seconds_to_next_step(2))
    job.check_same(before, [2], "the loss of nodes 0 and 1")
    return seconds, range(2, len(job.nodes))


def cut_off_then_back(job):
    """The other nodes are a majority. Node 0 waits until the network is back, and then joins them as a spare."""
    job.cut(0, "down")
    seconds = job.seconds_to_next_step()
    job.await_true("node 0 waits", lambda: job.says(0, "may still run the job"))
    job.cut(0, "up")
    job.await_true("node 0 joins", lambda: job.says(0, "this one waits to join after the next failure"))
    return seconds, range(len(job.nodes))


def half_cut_off_then_back(job):
    """One of two nodes is no majority. Node 0 led and continues; node 1 waits until the network is back."""
    job.cut(0, "down")
    seconds = job.seconds_to_next_step()
    job.await_true("node 1 waits", lambda: job.says(1, "may still run the job"))
    if job.says(1, "restart 1 of this job"):
        raise RuntimeError("node 1 trains beside node 0")
    job.cut(0, "up")
    job.await_true("node 1 joins", lambda: job.says(1, "this one waits to join after the next failure"))
    return seconds, range(len(job.nodes))


def worker_killed(job):
    """Only the killed worker of the last node is replaced. The others are the same processes as before."""
    job.same_ranks = True
    nodes = range(len(job.nodes))
    before = sum(job.workers_of(nodes), [])
    killed = before[-job.workers + 1]
    os.kill(killed, signal.SIGKILL)
    seconds = job.seconds_to_next_step()
    if not set(before) - {killed} < set(sum(job.workers_of(nodes), [])):
        raise RuntimeError("the other workers did not keep running")
    return seconds, nodes


# What is lost, number of nodes, workers of each node, how to disturb the job, limit of seconds to the next step.
CASES = [("worker killed", 1, 3, worker_killed, 3), ("worker of node 1 killed", 2, 2, worker_killed, 3),
         ("agent of node 1 killed and started again", 2, 2, agent_replaced, 15),
         ("agent of node 0 killed", 3, 1, agent_killed, 15), ("agent of node 0 killed", 2, 1, agent_killed, 15),
         ("agents of nodes 0 and 1 killed in turn", 3, 1, killed_twice, 15),
         ("node 0 cut off for a while", 3, 1, cut_off_then_back, 15 + SILENCE),
         ("node 0 cut off for a while", 2, 1, half_cut_off_then_back, 15 + SILENCE)]


def run_case(all_runs, number, nodes, workers, disturb, limit, calm, calm_tensors):
    job = Job(all_runs, f"case-{number}", nodes, workers)
    try:
        job.await_step(25)
        seconds, ending = disturb(job)
        violations = [f"took {seconds:.1f} s, at most {limit} are allowed"] if seconds > limit else []
        for i in ending:
            if job.agents[i].wait(timeout=runs.LIMIT) != 0:
                violations.append(f"node {i} ended with {job.agents[i].returncode}")
        violations += differences(job, calm, calm_tensors)
    except (RuntimeError, subprocess.TimeoutExpired) as e:
        seconds, violations = float("nan"), [str(e)]
    finally:
        job.stop()
    for v in violations:
        print(f"VIOLATION: {v}", flush=True)
        print(*(all_runs.text(job.log(i))[-3000:] for i in range(nodes)), sep="\n----\n", flush=True)
    return seconds, violations


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--keep", action="store_true", help="keep the folder of the runs")
    a = parser.parse_args()
    all_runs, bad, calm = runs.Runs(a.binary), 0, {}
    print(f"{'what is lost':42} {'nodes':>5} {'seconds to the next step':>25} {'violations':>11}", flush=True)
    try:
        for number, (what, nodes, workers, disturb, limit) in enumerate(CASES):
            world = nodes * workers
            if world not in calm:
                name = f"calm-{world}"
                all_runs.run("launch", "-n", str(world), "--threads-per-worker", "1", "--", "train", "t.yaml",
                             f"run.directory={all_runs.folder}/{name}", *SETTINGS)
                records = map(json.loads, all_runs.text(f"{name}/metrics.jsonl").splitlines())
                calm[world] = {r["step"]: r["loss"] for r in records if r["group"] == "train"}
            seconds, violations = run_case(all_runs, number, nodes, workers, disturb, limit, calm[world],
                                           tensors(all_runs, f"calm-{world}"))
            bad += len(violations)
            print(f"{what:42} {nodes:5} {seconds:25.2f} {len(violations):11}", flush=True)
    except cluster.Unavailable as reason:
        print(f"leaders.py: this machine permits no network of namespaces: {reason}", file=sys.stderr)
        return cluster.UNAVAILABLE
    finally:
        if not a.keep:
            all_runs.remove()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
