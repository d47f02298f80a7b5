#!/usr/bin/env python3
"""Kills workers and agents of small runs at random moments and in every phase. Runs must recover bit-identically.

    tests/recovery/kills.py BINARY [--kills 18] [--nodes 2] [--phases some|all|none] [--jobs 2] [--seed 1] [--keep]
    tests/recovery/kills.py BINARY --replaced 6 [--device cpu|cuda]

Some layouts combine features that have state: Muon, averages, schedules, mixtures, packing, dropout, steps that are
skipped or rolled back, and blocks by importance.

After each case, every loss and the hash of every tensor must equal those of the undisturbed run of the same layout,
every checkpoint must be readable, no process, listening socket or entry of /dev/shm may be left, and the log must show
that the intended process was killed. With --replaced, the workers of one long run are killed one after another, and
the other workers must keep running. --device cuda needs two GPUs. Prints a table. Exits with 1 if a requirement was
violated.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import os
import random
import re
import signal
import sys
import threading
import time

import runs

LIMIT = runs.LIMIT
LOOK = 0.05  # seconds between two searches for listening sockets of a job
STEP_PHASES = ["data", "forward", "backward", "reduce", "optimizer", "finish"]
OTHER_PHASES = ["load", "validate", "snapshot", "write", "sync", "commit", "read_back"]
FIRST_SAVE = runs.INTERVAL


class Case:
    """One run that is disturbed. Subclasses implement disturb(), which returns violations."""

    def __init__(self, number, layout):
        self.number, self.layout, self.directory = number, layout, f"case-{number}"
        self.log = self.directory + ".log"
        self.listeners = set()

    def watch(self, all_runs):
        self.listeners |= runs.listeners_of(runs.processes_of(f"{all_runs.folder}/{self.directory}"))

    def leftovers(self, all_runs):
        path = f"{all_runs.folder}/{self.directory}"
        until = time.monotonic() + LIMIT
        while runs.processes_of(path) and time.monotonic() < until:
            time.sleep(0.02)
        found = [f"process {pid} is left" for pid in runs.processes_of(path)]
        if not self.listeners:
            found.append("no listening socket was seen, so none could be found left")
        return found + [f"listening socket {inode} is left" for inode in self.listeners & runs.listening()]

    def run(self, all_runs):
        """Returns the violations."""
        all_runs.undisturbed(self.layout)
        violations = self.disturb(all_runs)
        return violations + self.leftovers(all_runs) + all_runs.differences(self.directory, self.layout)

    def await_end(self, all_runs, agent):
        until = time.monotonic() + LIMIT
        while agent.poll() is None and time.monotonic() < until:
            self.watch(all_runs)
            time.sleep(LOOK)

    def wait(self, all_runs, agent, name="the agent"):
        self.await_end(all_runs, agent)
        if agent.poll() == 0:
            return []
        code = agent.poll()
        runs.end(agent)
        return [f"{name} {'hung' if code is None else f'ended with {code}'}: {all_runs.text(self.log)[-2000:]}"]


class RandomKill(Case):
    """Kills any worker at any moment after its start: before the first step, or some time after a random step."""
    kind = "random rank, random moment"

    def __init__(self, number, layout, chance):
        super().__init__(number, layout)
        self.chance = chance

    def disturb(self, all_runs):
        for attempt in range(20):  # a moment after the end of the run kills no process
            self.directory = f"case-{self.number}-{attempt}"
            self.log = self.directory + ".log"
            begin, step = time.monotonic(), self.chance.randrange(runs.steps_of(self.layout))
            agent = all_runs.start(self.directory, self.layout, self.log)
            while not runs.children(agent.pid) and agent.poll() is None:
                time.sleep(0.002)
            self.watch(all_runs)  # early, since the job may end soon after the kill
            while all_runs.steps(self.directory) < step and agent.poll() is None:
                time.sleep(0.002)
            # Waits for at most the mean time per step so far, or for a moment of the start.
            time.sleep(self.chance.random() * (time.monotonic() - begin) / (step + 1))
            workers = runs.children(agent.pid)
            if workers:
                with contextlib.suppress(ProcessLookupError):  # the worker has just ended
                    os.kill(self.chance.choice(workers), signal.SIGKILL)
            violations = self.wait(all_runs, agent)
            if violations or "was killed by signal 9" in all_runs.text(self.log):
                return violations
        return ["20 moments came too late"]


class PhaseKill(Case):
    """Kills a rank in a phase and, if `again` is given, once more during recovery."""
    kind = "rank in a phase"

    def __init__(self, number, layout, phase, again=None, step=None):
        super().__init__(number, layout)
        self.phase, self.again, self.step = phase, again, step

    def disturb(self, all_runs):
        faults = f"{self.number}:{kill_in(self.phase, 0, step=self.step)}"
        if self.again:
            faults += f";kill@rank={'0' if self.again == 'commit' else 'any'},phase={self.again},attempt=1"
        agent = all_runs.start(self.directory, self.layout, self.log, faults)
        violations = self.wait(all_runs, agent)
        return violations + not_hit(all_runs.text(self.log), [self.phase] + ([self.again] if self.again else []))


class AgentKill(Case):
    """Kills the agent of a node in a phase of its first worker. A new agent joins the job. Its leader is the agent of
    node 0, or after its loss that of node 1."""
    kind = "agent of node 0, or of node 1, in a phase"

    def __init__(self, number, layout, phase, node):
        super().__init__(number, layout)
        self.phase, self.node = phase, node

    def disturb(self, all_runs):
        faults = f"{self.number}:{kill_in(self.phase, 0, agent=self.node)}"
        nodes = (2, runs.free_port())

        def start(faults):
            return all_runs.start(self.directory, self.layout, self.log, faults, nodes)
        agents = [start(faults)]
        await_text(all_runs, self.log, "waiting")  # the first agent leads
        agents.append(start(faults))
        killed, other = agents[self.node], agents[1 - self.node]
        self.await_end(all_runs, killed)
        violations = not_hit(all_runs.text(self.log), [self.phase])
        agents = [other, start(faults)]
        for agent in agents:
            violations += self.wait(all_runs, agent)
        return violations


class NodesKill(Case):
    """Kills workers, and agents with their workers, of a job of two nodes at random moments. A new agent takes the
    place of each lost one, so that the lead of the job may pass on several times."""
    kind = "workers and agents of two nodes"

    def __init__(self, number, layout, chance):
        super().__init__(number, layout)
        self.chance = chance

    def disturb(self, all_runs):
        nodes = (2, runs.free_port())

        def start():
            # Slow steps let the run outlast the kills.
            slow = f"{self.number}:slow@rank=all,phase=data,wait=100ms,attempt=each"
            agents.append(all_runs.start(self.directory, self.layout, self.log, slow, nodes))
        agents = []
        start()
        await_text(all_runs, self.log, "waiting")  # the first agent leads
        start()
        for begin in range(0, runs.STEPS, 3):
            step = begin + self.chance.randrange(3)
            while all_runs.steps(self.directory) < step and all(a.poll() is None for a in agents):
                time.sleep(0.002)
            time.sleep(self.chance.random() * 0.2)
            victim = self.chance.choice(agents)
            workers = runs.children(victim.pid)
            if self.chance.random() < 0.4 and begin + 6 <= runs.STEPS:  # a later new agent could find the job ended
                runs.end(victim)
                agents.remove(victim)
                start()
            elif workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.chance.choice(workers), signal.SIGKILL)
        return [v for agent in agents for v in self.wait(all_runs, agent)]


class ReplacedKills(Case):
    """Kills workers of one run one after another, at random moments between steps and in them. Each of them is replaced
    while the others keep running. Prints the seconds from each kill to the next step."""
    kind = "workers in turn, which are replaced"

    def __init__(self, number, layout, chance, kills, changes=()):
        super().__init__(number, layout)
        self.chance, self.kills, self.changes = chance, kills, list(changes)

    def disturb(self, all_runs):
        agent = all_runs.start(self.directory, self.layout, self.log, changes=self.changes)
        steps, violations, seconds = runs.steps_of(self.layout), [], []
        for i in range(self.kills):
            step = int((i + 0.2 + 0.8 * self.chance.random()) * steps / (self.kills + 1))
            while all_runs.steps(self.directory) < step and agent.poll() is None:
                time.sleep(0.005)
            self.watch(all_runs)
            time.sleep(0.02 * self.chance.random())
            before = runs.children(agent.pid)
            if agent.poll() is not None or not before:
                break
            killed = before[1 - i] if i < 2 else self.chance.choice(before)
            begin = time.monotonic()
            os.kill(killed, signal.SIGKILL)
            while self.steps_after(all_runs, i + 1) < 3 and agent.poll() is None and time.monotonic() < begin + 60:
                time.sleep(0.005)
            seconds.append(time.monotonic() - begin)
            if not set(before) - {killed} <= set(runs.children(agent.pid)):
                violations.append(f"kill {i + 1}, after step {step}: the other workers did not keep running")
        print(f"{self.layout} {' '.join(self.changes)}: seconds from a kill to the next step:",
              *(f"{s:.2f}" for s in seconds), flush=True)
        if len(seconds) < self.kills:
            violations.append(f"only {len(seconds)} of {self.kills} workers were killed")
        violations += self.wait(all_runs, agent)
        return violations + ([all_runs.text(self.log)[-8000:]] if violations else [])

    def steps_after(self, all_runs, restarts):
        """Returns the number of steps recorded after this restart. The first two may come from a survivor's reports."""
        text = all_runs.text(self.directory + "/metrics.jsonl")
        at = text.find(f'"restarts":{restarts},')
        return text.count('"group":"train"', at) if at >= 0 else 0


def kill_in(phase, attempt, agent=None, step=None):
    whom = f"agent={agent}" if agent is not None else "rank=0" if phase == "commit" else "rank=any"
    step = step or (FIRST_SAVE + 2 if phase in STEP_PHASES else FIRST_SAVE)
    when = "" if phase in ("load", "validate") else f",step={step}"
    return f"kill@{whom},phase={phase},attempt={attempt}{when}"


def not_hit(log, phases):
    hit = re.findall(r"--inject: kill.*: killing .* in phase (\w+)", log)
    return [] if collections.Counter(phases) <= collections.Counter(hit) else [f"hit were {hit}, not {phases}: {log}"]


def await_text(all_runs, log, text, times=1):
    until = time.monotonic() + LIMIT
    while all_runs.text(log).count(text) < times and time.monotonic() < until:
        time.sleep(0.01)


def cases_of_replacements(a):
    chance = random.Random(a.seed)
    if a.device == "cpu":
        return [ReplacedKills(0, "long3", chance, a.replaced)]
    third = a.replaced // 3
    return [ReplacedKills(0, "dp2-gpu", chance, a.replaced - 2 * third),
            ReplacedKills(1, "dp2-gpu", chance, third, ["train.cuda_graph=on"]),
            ReplacedKills(2, "cp2-gpu", chance, third)]


def cases_of(a):
    if a.replaced:
        return cases_of_replacements(a)
    chance, cases, layouts = random.Random(a.seed), [], list(runs.LAYOUTS)
    for i in range(a.kills):
        cases.append(RandomKill(len(cases), layouts[i % len(layouts)], random.Random(chance.random())))
    several = [name for name in layouts if runs.LAYOUTS[name][0] > 1]
    exact = [name for name in several if "islands" not in name]  # an island loses progress with its agent
    for i in range(a.nodes):  # half of them in layouts whose workers can be replaced
        name = ["dp2", "dp4"][i // 2 % 2] if i % 2 == 0 else exact[i // 2 % len(exact)]
        cases.append(NodesKill(len(cases), name, random.Random(chance.random())))
    for i, phase in enumerate((STEP_PHASES + OTHER_PHASES) if a.phases != "none" else []):
        for layout in several if a.phases == "all" else [several[i % len(several)]]:
            cases.append(PhaseKill(len(cases), layout, phase))
        for node in (0, 1) if a.phases == "all" else [i // 4 % 2] if i % 4 == 1 else []:
            if phase != "commit" or node == 0:  # only rank 0 commits
                cases.append(AgentKill(len(cases), exact[i % len(exact)], phase, node))
    for layout in ["skip", "rollback2"]:  # some steps before the kill were bad
        cases.append(PhaseKill(len(cases), layout, "optimizer", step=runs.steps_of(layout) - chance.randrange(2, 10)))
    for again in ["load", "forward", "commit"] if a.phases != "none" else []:
        cases.append(PhaseKill(len(cases), chance.choice(several), "backward", again))
    return cases


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--kills", type=int, default=18)
    parser.add_argument("--nodes", type=int, default=2, help="number of jobs of two nodes that are disturbed")
    parser.add_argument("--phases", choices=["some", "all", "none"], default="some")
    parser.add_argument("--replaced", type=int, default=0, help="kill this many workers of long runs instead")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="device of the long runs")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the folder of the runs")
    a = parser.parse_args()
    begin, shared = time.monotonic(), set(os.listdir("/dev/shm"))
    all_runs, lock, results = runs.Runs(a.binary), threading.Lock(), collections.defaultdict(lambda: [0, 0])
    cases = cases_of(a)
    for layout in sorted({case.layout for case in cases}):
        all_runs.undisturbed(layout)

    def run(case):
        try:
            violations = case.run(all_runs)
        except Exception as e:  # the other cases still run
            violations = [repr(e)]
        with lock:
            row = results[case.kind, case.layout]
            row[0] += 1
            row[1] += len(violations)
            for v in violations:
                print(f"VIOLATION in case {case.number} ({case.kind}, {case.layout}, "
                      f"{getattr(case, 'phase', '')}): {v}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(1 if a.replaced else a.jobs) as pool:
        list(pool.map(run, cases))
    print(f"{'what is killed':45} {'layout':10} {'runs':>6} {'violations':>11}")
    for (kind, layout), (count, bad) in sorted(results.items()):
        print(f"{kind:45} {layout:10} {count:6} {bad:11}")
    bad = sum(row[1] for row in results.values())
    left = sorted(set(os.listdir("/dev/shm")) - shared)
    print(f"{len(cases)} runs, {bad} violations, {len(left)} entries left in /dev/shm {left or ''}, seed {a.seed}, "
          f"{time.monotonic() - begin:.0f} s")
    if not a.keep:
        all_runs.remove()
    return 1 if bad or left else 0


if __name__ == "__main__":
    sys.exit(main())
