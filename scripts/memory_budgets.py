#!/usr/bin/env python3
"""Measures training steps within memory budgets; prints predicted and measured peaks and times as a Markdown table.

    scripts/memory_budgets.py [--gpus 1|2] [--shapes gpt2,1b] [--shares 100,75,50,25] [--steps 3] [--rates h200]
                              [SETTING...]

There are twelve shapes; with two GPUs each has a layout. The budget of share S is the least memory that a plan needs,
plus S percent of the difference to keeping all activations. Exits with 1 if a peak is above its budget or more than
3 % off its prediction; times are only printed. SETTING applies to all shapes, such as train.batch_size=2. The variable
RINGMASTER names the program (default build/release/ringmaster). Each shape takes six runs.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FP32_STATES = ["optimizer.master=fp32", "optimizer.moments=fp32", "optimizer.gradients=fp32"]
# Name: file of bench/shapes, settings, and the layout on two GPUs.
SHAPES = {
    "gpt2": ("gpt2", [], ["parallel.dp=2", "parallel.zero=1"]),
    "qwen05": ("qwen05", [], ["parallel.tp=2"]),
    "qwen15": ("qwen15", ["train.batch_size=16"], ["parallel.cp=2", "parallel.zero=1"]),
    "1b": ("1b", [], ["parallel.dp=2", "parallel.zero=3"]),
    "1b32k": ("1b32k", [], ["parallel.cp=2", "parallel.zero=3"]),
    "1b-fp32-states": ("1b", FP32_STATES, ["parallel.dp=2"]),
    "1b32k-window": ("1b32k", ["model.attention={kind: window, window: 1024}"], ["parallel.cp=2"]),
    "1b-64k-dilated": (
        "1b32k",
        ["model.context=65536", "model.attention={kind: dilated, segments: [2048, 8192, 65536], rates: [1, 4, 32]}"],
        ["parallel.tp=2"],
    ),
    "1b-tf32": (
        "1b",
        ["train.precision=tf32", "train.batch_size=2", *FP32_STATES],
        ["parallel.dp=2", "parallel.zero=2"],
    ),
    "gpt2-fp32": ("gpt2", ["train.precision=fp32", "train.batch_size=32", *FP32_STATES], ["parallel.tp=2"]),
    "1b-dropout": (
        "1b",
        ["model.dropout=0.1", "train.batch_size=16", "train.micro_batch=2"],
        ["parallel.tp=2"],
    ),
    "8b-8-layers": (
        "8b",
        ["model.layers=8", "model.context=8192"],
        ["train.batch_size=2", "parallel.dp=2", "parallel.zero=3"],
    ),
}


class Step:
    """What `bench step` said of a run."""

    def __init__(self, output):
        def number(pattern):
            return float(re.search(pattern, output).group(1))

        self.measured = number(r"peak memory ([0-9.]+) GiB in use")
        self.predicted = number(r"; peak ([0-9.]+) GiB, [0-9.]+ of the memory in use")
        self.ms = number(r"step ([0-9.]+) ms, [0-9]+ tokens/s")
        self.ratio = number(r"step [0-9.]+ ms, ([0-9.]+) of the measured time")


def command(arguments, shape, settings, tuning):
    program = [os.environ.get("RINGMASTER", str(ROOT / "build/release/ringmaster"))]
    if arguments.gpus > 1:
        program += ["launch", "-n", str(arguments.gpus), "--"]
    return [*program, "bench", "step", str(ROOT / "bench/shapes" / (shape + ".yaml")), "--steps", str(arguments.steps),
            "--warmup", "3", "--no-ceilings", "--rates", arguments.rates, "run.tuning=" + tuning, *settings]


def run(words):
    end = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return end.returncode, end.stdout


def step(words):
    code, output = run(words)
    if code != 0:
        raise SystemExit(output + "\nfailed: " + " ".join(words))
    return Step(output)


def least_gib(words):
    """Of the plan that keeps least, which the refusal of a budget names."""
    _, output = run([*words, "train.memory_budget=1000000"])
    found = re.search(r"it needs ([0-9.]+) ([KMGT]iB)", output)
    if not found:
        raise SystemExit(output + "\nthe output does not state the least memory: " + " ".join(words))
    return float(found.group(1)) * {"KiB": 2.0**-20, "MiB": 2.0**-10, "GiB": 1, "TiB": 1024}[found.group(2)]


def measure(arguments, name, tuning):
    """Rows of a shape; what is wrong with them."""
    shape, settings, layout = SHAPES[name]
    words = command(arguments, shape, settings + (layout if arguments.gpus > 1 else []) + arguments.settings, tuning)
    least = 1.01 * least_gib(words)  # it is printed with few digits
    most = step([*words, "train.recompute=none"]).predicted + 0.01
    wrong = []
    for share in arguments.shares:
        budget = least + share / 100 * max(0, most - least)
        s = step([*words, "train.memory_budget=%d" % (budget * 2**30)])
        print("| %s | %g %% | %.2f | %.2f | %.2f | %.3f | %.1f | %.2f |" %
              (name, share, budget, s.predicted, s.measured, s.predicted / s.measured, s.ms, s.ratio), flush=True)
        if s.measured > budget + 0.005:
            wrong.append("%s, %g %%: the peak of %.2f GiB is above the budget" % (name, share, s.measured))
        if abs(s.predicted - s.measured) > 0.03 * s.measured:
            wrong.append("%s, %g %%: the prediction is more than 3 %% off" % (name, share))
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, choices=(1, 2), default=1)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="shapes, separated by commas; default: all")
    parser.add_argument("--shares", default="100,75,50,25",
                        help="shares in percent, separated by commas; default: %(default)s")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rates", default="auto")
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    arguments = parser.parse_args()
    arguments.shares = [float(share) for share in arguments.shares.split(",")]
    names = arguments.shapes.split(",")
    for name in names:
        if name not in SHAPES:
            parser.error("unknown shape %s; available: %s" % (name, ", ".join(SHAPES)))
    print("| shape | share | budget GiB | predicted | measured | ratio | ms | predicted / measured |\n|" + "---|" * 8)
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            wrong += measure(arguments, name, os.path.join(folder, name + ".yaml"))
    print("\n".join(["", *wrong]) if wrong else
          "\nno peak is above its budget, and none is more than 3 % off its prediction")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
