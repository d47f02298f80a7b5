#!/usr/bin/env python3
"""Attacks the inputs that the program reads before a model exists: settings files, command lines, environments.

    tests/attack/settings.py BINARY [--settings 1000] [--commands 600] [--environments 100] [--seed 1] [--keep FOLDER]

Each input is one run of the binary, which has to end with exit code 0, 1 or 2 and a message within 5 seconds of its
CPU time, without a signal and with at most 1 GB of memory. Prints inputs that fail this, and a summary; exits with 1 if
any does.
"""

import argparse
import collections
import os
import random
import resource
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import time

SECONDS, MEMORY = 5.0, 1 << 30
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

NUMBERS = ["0", "-0", "-1", "1", "2", "7", "64", "128", "4096", "65536", "1048576", "1073741824", "2147483647",
           "2147483648", "-2147483649", "4294967295", "4294967297", "9007199254740993", "9223372036854775807",
           "9223372036854775808", "-9223372036854775808", "18446744073709551616", "1e3", "1e-320", "1e30", "1e308",
           "1e309", ".nan", ".inf", "-.inf", "nan", "0x10", "0.5", "1_000", "1 2", "99999999999999999999999999"]
VALUES = NUMBERS + ["null", "~", "true", "yes", "[]", "{}", "''", "[1, [2, [3]]]", "{a: {b: {c: d}}}", "*x", "&x 1",
                    "!!int 3", "!!binary aGk=", "|\n  text", ">-", "\"\\x00\"", "\"\\u2028\"", "dense", "window",
                    "dilated", "block_sparse", "on", "off", "auto", "/dev/zero", "/dev/stdin", ".", "..", "/", "%", "@"]


class Outcome:
    def __init__(self, code, killed, seconds, memory, text):
        self.code, self.killed, self.seconds, self.memory, self.text = code, killed, seconds, memory, text


def limit_memory():
    # Above MEMORY, so that an allocation beyond MEMORY shows as an error of the program, not of this machine.
    resource.setrlimit(resource.RLIMIT_AS, (3 * MEMORY, 3 * MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(command, environment, folder):
    out = open(os.path.join(folder, "output"), "w+b")
    started = time.monotonic()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment,
                             cwd=folder, preexec_fn=limit_memory, start_new_session=True)
    pid = 0
    # On a busy machine, the program's CPU time counts, up to ten times as much on the clock.
    while pid == 0 and time.monotonic() - started < 10 * SECONDS and cpu_seconds(child.pid) < SECONDS:
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        time.sleep(0.005)
    killed = pid == 0
    if killed:
        os.killpg(child.pid, signal.SIGKILL)
        pid, status, usage = os.wait4(child.pid, 0)
    child.returncode = 0  # the process has been waited for
    out.seek(0)
    text = out.read(1 << 20).decode("utf-8", "replace")
    out.close()
    return Outcome(os.waitstatus_to_exitcode(status), killed, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10, text)


def cpu_seconds(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return 0.0


def findings(o):
    """Returns a list of the problems of an outcome."""
    wrong = []
    if o.killed:
        wrong.append("hang")
    elif o.code < 0:
        wrong.append(f"signal {-o.code}")
    elif o.code not in (0, 1, 2):
        wrong.append(f"exit code {o.code}")
    elif o.code != 0 and not o.text.strip():
        wrong.append("no message")
    if o.memory > MEMORY:
        wrong.append(f"{o.memory >> 20} MiB")
    for sign in ("bad_alloc", "terminate called", "length_error", "out_of_range", "basic_string", "vector::",
                 "filesystem error", "is false at", "AddressSanitizer", "runtime error", "stoi", "stoll", "regex"):
        if sign in o.text:
            wrong.append(sign)
    if o.code != 0 and len(o.text) > 100_000:
        wrong.append(f"{len(o.text)} bytes of output")
    return wrong


# --- settings ---

def settings_corpus():
    texts = []
    for folder, _, names in os.walk(os.path.join(SOURCE, "configs")):
        for name in sorted(names):
            if name.endswith(".yaml"):
                with open(os.path.join(folder, name)) as file:
                    texts.append(file.read())
    return texts


def known_keys(binary):
    text = subprocess.run([binary, "config", "docs"], capture_output=True, text=True, check=True).stdout
    keys = [line.split("`")[1] for line in text.splitlines() if line.startswith("* **`")]
    return [key.replace("[]", "[0]") for key in keys]


def nested(rng, count):
    unit = rng.choice(["[", "{a: ", "- ", "? ", "[{", "model: {", "&a [", "!!x "])
    return unit * count


def bomb(rng):
    lines, width = ["a0: &a0 [x, x]"], rng.choice([2, 9])
    for i in range(1, rng.choice([5, 30, 200])):
        lines.append(f"a{i}: &a{i} [" + ", ".join([f"*a{i - 1}"] * width) + "]")
    return "\n".join(lines) + "\n"


def flood(rng):
    count = rng.choice([1000, 50_000])
    return rng.choice([
        lambda: "".join(f"key{i}: {i}\n" for i in range(count)),
        lambda: "model:\n  attention_layers: [" + "{layers: 0}, " * count + "]\n",
        lambda: "model: {attention: {kind: block_sparse, rules: [" + "{}, " * count + "]}}\n",
        lambda: "data: {mixture: [" + "{path: a, weight: 1}, " * count + "]}\n",
        lambda: "model: {attention: {kind: dilated, segments: [" + "1, " * count + "], rates: [" + "1," * count + "]}}\n",
        lambda: "model: {attention_layers: [{layers: \"" + "0-3," * count + "\"}]}\n",
        lambda: "model: {attention_layers: [{layers: \"" + " " * count + "\"}]}\n",
        lambda: "run: {name: \"" + "x" * count * 20 + "\"}\n",
        lambda: "x" * count * 20 + ": 1\n",
        lambda: "include: [" + "base.yaml, " * count + "]\n",
        lambda: "# " + "c" * count * 40,
        lambda: "\n" * count * 20,
        lambda: "a: \"" + "\\n" * count * 10,
    ])()


def mutate_bytes(rng, text):
    data = bytearray(text.encode())
    for _ in range(rng.choice([1, 1, 2, 5, 50])):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at:at + rng.randrange(1, 40)]
        elif kind == 2:
            data[at:at] = bytes(rng.choice(b"[]{}:,&*!|>'\"%@`#-?\n\t \x00\xff\xc3") for _ in range(rng.randrange(1, 9)))
        elif kind == 3:
            data[at:at] = data[max(0, at - rng.randrange(1, 80)):at] * rng.choice([1, 2, 100])
        elif kind == 4:
            data = data[:at]
        else:
            data[at:at] = rng.choice(VALUES).encode()
    return bytes(data[:3 << 20])


def mutate_lines(rng, text):
    lines = text.split("\n")
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(lines))
        kind = rng.randrange(5)
        if kind == 0 and ":" in lines[at]:
            lines[at] = lines[at].split(":")[0] + ": " + rng.choice(VALUES)
        elif kind == 1:
            lines.insert(at, lines[rng.randrange(len(lines))])
        elif kind == 2:
            lines[at] = " " * rng.randrange(8) + lines[at].strip()
        elif kind == 3:
            del lines[at]
            lines = lines or [""]
        else:
            lines[at] = lines[at].replace(rng.choice(string.ascii_lowercase), "")
    return "\n".join(lines).encode()


def keyed(rng, keys):
    """Returns known keys with extreme values, most of them valid."""
    tree = {}
    for key in rng.sample(keys, rng.randrange(1, 9)):
        parts, node = key.split("."), tree
        for part in parts[:-1]:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                break
        if isinstance(node, dict):
            node.setdefault(parts[-1], rng.choice(VALUES if rng.random() < 0.3 else NUMBERS))

    def flow(node):
        if not isinstance(node, dict):
            return node
        lists = {k[:-3]: v for k, v in node.items() if k.endswith("[0]")}
        items = [f"{k}: {flow(v)}" for k, v in node.items() if not k.endswith("[0]")]
        items += [f"{k}: [{flow(v)}]" for k, v in lists.items()]
        return "{" + ", ".join(items) + "}"

    return "".join(f"{key}: {flow(value)}\n" for key, value in tree.items()).encode()


def includes(rng, folder):
    os.makedirs(folder, exist_ok=True)
    fifo = os.path.join(folder, "fifo")
    if not os.path.exists(fifo):
        os.mkfifo(fifo)
        os.symlink("loop", os.path.join(folder, "loop"))
        for i in range(60):
            with open(os.path.join(folder, f"d{i}.yaml"), "w") as file:
                file.write(f"include: [d{i - 1}.yaml, ./d{i - 1}.yaml]\n" if i else "train: {steps: 1}\n")
        with open(os.path.join(folder, "big.yaml"), "w") as file:
            file.write("# " + "x" * (3 << 20))
    return ("include: " + rng.choice(["fifo", "loop", ".", "/dev/zero", "/dev/tty", "d59.yaml", "d20.yaml", "big.yaml",
                                      "settings.yaml", "[d5.yaml, fifo, d10.yaml]", "[[d1.yaml]]", "\"a\\0b\"", "*x",
                                      "/proc/self/mem", "/proc/self/environ", "" ]) + "\n").encode()


def make_settings(rng, corpus, keys, folder):
    kind = rng.randrange(12)
    text = rng.choice(corpus)
    if kind < 3:
        return mutate_bytes(rng, text)
    if kind < 6:
        return mutate_lines(rng, text)
    if kind < 9:
        return keyed(rng, keys)
    if kind == 9:
        return includes(rng, folder) + (text.encode() if rng.random() < 0.5 else b"")
    if kind == 10:
        return rng.choice([bomb(rng), nested(rng, rng.choice([50, 70, 3000, 100_000]))]).encode()
    return flood(rng).encode()


def attack_settings(a, rng, folder, report):
    corpus, keys = settings_corpus(), known_keys(a.binary)
    path = os.path.join(folder, "settings.yaml")
    shutil.copytree(os.path.join(SOURCE, "configs"), folder, dirs_exist_ok=True)  # configs include each other
    for i in range(a.settings):
        with open(path, "wb") as file:
            file.write(make_settings(rng, corpus, keys, folder))
        # Valid settings get as far as their corpus, which is missing.
        whole = ["train.steps=1", "train.tokens=0", "data.path=a.h5", "data.mixture=[]"]
        tail = whole + ["data.path=" + os.path.join(folder, "none.h5"), "run.device=cpu",
                "run.directory=" + os.path.join(folder, "run")]
        command = rng.choice([["config", "show", path], ["config", "show", path] + whole, ["train", path] + tail])
        report(f"settings {i}", command, plain_environment(), [path])


# --- command lines ---

COMMANDS = [
    "train S --fresh --allow-changes --profile 3 --nvtx train.steps=1",
    "config show S train.steps=1", "config docs", "doctor", "--version", "--help", "train --help",
    "generate R --prompt abc --temperature 0.7 --top-k 5 --top-p 0.9 --seed 3 --max-tokens 5 --threads 1 --device cpu",
    "eval R --data none.h5 --batches 3 --batch-size 2 --threads 1 --json",
    "eval R --long --length 64 --lengths 16,32 --depths 0,0.5,1 --trials 2 --seed 4 --csv",
    "checkpoint inspect R", "checkpoint verify R",
    "data prepare --input none --glob *.txt --tokenizer bytes --output o.h5 --split hash --validation-fraction 0.1 --document line --threads 2 --force",
    "data inspect none.h5 --document 3 --validation --bytes 100",
    "tokenizer train --input none --kind bpe --vocab-size 512 --output t.rmt --max-train-bytes 5MB --character-coverage 0.999 --end-of-text",
    "tokenizer encode bytes --pieces some text", "tokenizer decode bytes 1 2 3",
    "tokenizer inspect bytes --first 5 --tokens 3",
    "attention show S --layer 0 --length 64 --head 0 --width 40",
    "attention fit R dense --density 0.5 --pattern learned --batches 1 --batch-size 2 --threads 1 --device cpu --json",
    "launch -n 2 --threads-per-worker 1 --log-dir logs --timeout 5 --stop-timeout 5 -- eval R",
    "bench step none.yaml --steps 2 --warmup 1 --peak-tflops 3 --csv a.csv --who me --no-ceilings --profile 2 --trace t",
    "bench ops none.yaml --seconds 0.1 --steps 1 --filter matmul --csv", "bench floor none.yaml --csv f",
    "bench context --length 64 --heads 2 --kv-heads 1 --head-dim 7 --schedule ring --kind window --window 8 --threads 1",
    "bench attention --heads 2 --head-dim 7 --length 64 --tokens 64 --causal --kind dilated --segments 16 --rates 1",
]
WORDS = NUMBERS + ["", "-", "--", "---", "=", "-n", "-n=", "--x", "--seed", "--threads", "--help", "-h", "--version", "a=b",
                   "a..b=1", "a[0]=1", "a[99999999999999999999]=1", "[", "model=[", "model={", "%s%n", "\u202e", "x" * 5000,
                   "train", "launch", "bench", "data", "\n", "\t", "5MB", "9e9TB", "-5MB", "model.layers=1e30", "run.seed=-1",
                   "train.steps=9223372036854775808", "optimizer.lr=.nan", "model.attention.segments=[" + "1," * 30000 + "]",
                   "data={mixture: [" + "{}," * 3000 + "]}", "run.name=" + "[" * 20000, "1,2,,3", ",", "1," * 20000]


def make_command(rng, settings):
    words = rng.choice(COMMANDS).split(" ")
    for _ in range(rng.choice([0, 1, 1, 2, 3, 8])):
        at = rng.randrange(len(words) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(words):
            words[at] = rng.choice(WORDS)
        elif kind == 1:
            words.insert(at, rng.choice(WORDS))
        elif kind == 2 and at < len(words):
            del words[at]
        elif kind == 3:
            words.insert(at, rng.choice(words) if words else "")
        elif kind == 4 and at < len(words) and words[at][:1].isdigit():
            words[at] = rng.choice(NUMBERS)
        elif at < len(words) and words[at]:
            cut = rng.randrange(len(words[at]))
            words[at] = words[at][:cut] + rng.choice(["", "-", "=", "\x7f", "\u00e9", "0" * 300]) + words[at][cut + 1:]
    words = [w.replace("\0", "") for w in words]
    return [settings if w == "S" else "none" if w == "R" else w for w in words]


def attack_commands(a, rng, folder, report):
    settings = os.path.join(folder, "command.yaml")
    with open(settings, "w") as file:
        file.write("data: {path: none.h5}\ntrain: {steps: 1}\n")
    for i in range(a.commands):
        report(f"command {i}", make_command(rng, settings), plain_environment(), [])


# --- environments ---

ENVIRONMENTS = [
    {"RINGMASTER_RANK": "1", "RINGMASTER_WORLD": "4", "RINGMASTER_LOCAL_RANK": "1", "RINGMASTER_LOCAL_WORLD": "4",
     "RINGMASTER_STORE": "127.0.0.1:1", "RINGMASTER_COOKIE": "abc", "RINGMASTER_NODES": "2",
     "RINGMASTER_RESTART_COUNT": "1"},
    {"RANK": "1", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1",
     "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"},
    {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "2",
     "OMPI_COMM_WORLD_LOCAL_SIZE": "3", "PMIX_NAMESPACE": "1234567"},
    {"SLURM_JOB_ID": "991", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1",
     "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "n[07,12]", "RINGMASTER_SECRET": "0123456789abcdef" * 2},
    {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"},
    {"RINGMASTER_PAGE": "2"},
    {"RINGMASTER_THREADS": "2", "RINGMASTER_GEMM": "none", "RINGMASTER_ADDRESS": "127.0.0.1",
     "RINGMASTER_COMM_TIMEOUT": "5", "RINGMASTER_LIVENESS": "3", "RINGMASTER_COPY_ENGINES": "0"},
]
SETTINGS_OF_ENVIRONMENT = NUMBERS + ["", " ", "x", "n[0-9999][0-9999]", "n[0-65535]", "n[" * 20000, "[" * 20000 + "]" * 20000,
                                     "n[1]" * 20000, "n[1-3],m", "a," * 30000, "x" * 100000, "127.0.0.1:99999", ":", "::1", "[",
                                     "localhost:-1", "2000000000", "\x01\x02", "%n%s", "host:1:2"]


def plain_environment():
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TERM": "dumb"}


def waits_for_others(o):
    """Returns whether a run waits for processes that never come, which is not a hang."""
    return o.killed and o.seconds < 1


def attack_environments(a, rng, folder, report):
    settings = os.path.join(folder, "environment.yaml")
    with open(settings, "w") as file:
        file.write(f"data: {{path: {folder}/none.h5}}\ntrain: {{steps: 1}}\nrun: {{device: cpu, directory: {folder}/run}}\n")
    for i in range(a.environments):
        variables = dict(rng.choice(ENVIRONMENTS))
        if rng.random() < 0.3:
            variables.update(rng.choice(ENVIRONMENTS))
        for name in rng.sample(sorted(variables), rng.randrange(1, min(4, len(variables)) + 1)):
            variables[name] = rng.choice(SETTINGS_OF_ENVIRONMENT)
        command = rng.choice([["train", settings], ["bench", "step", settings, "--steps", "1"], ["doctor"]])
        report(f"environment {i}", command, {**plain_environment(), **variables}, [], waits_for_others)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    for name, count in (("settings", 1000), ("commands", 600), ("environments", 100), ("seed", 1)):
        parser.add_argument("--" + name, type=int, default=count)
    parser.add_argument("--keep", help="copy inputs that broke something to this folder")
    a = parser.parse_args()
    a.binary = os.path.abspath(a.binary)
    tally, worst, broken = collections.Counter(), {"seconds": 0.0, "memory": 0}, 0

    with tempfile.TemporaryDirectory(prefix="ring_attack_") as folder:
        def report(name, command, environment, inputs, allowed=lambda o: False):
            nonlocal broken
            o = run([a.binary] + command, environment, folder)
            waited = allowed(o)
            wrong = [] if waited else findings(o)
            kind = "waited for others" if waited else "accepted" if o.code == 0 or "none.h5" in o.text else "refused"
            tally[name.split()[0] + " " + kind] += 1
            worst["seconds"] = max(worst["seconds"], o.seconds)
            worst["memory"] = max(worst["memory"], o.memory)
            if not wrong:
                return
            broken += 1
            print(f"{name}: {', '.join(wrong)}: {' '.join(command)[:300]!r}: {o.text[:300]!r}")
            if a.keep:
                os.makedirs(a.keep, exist_ok=True)
                for path in inputs:
                    target = os.path.join(a.keep, name.replace(" ", "_") + "_" + os.path.basename(path))
                    with open(path, "rb") as source, open(target, "wb") as copy:
                        copy.write(source.read())

        for number, attack in enumerate((attack_settings, attack_commands, attack_environments)):
            attack(a, random.Random(a.seed * 1000 + number), folder, report)
    for what, count in sorted(tally.items()):
        print(f"{what}: {count}")
    print(f"most: {worst['seconds']:.2f} s of CPU time, {worst['memory'] >> 20} MiB; {broken} broke something")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
