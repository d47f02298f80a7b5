#!/usr/bin/env python3
"""The gated delta rule of Ringmaster, of flash-linear-attention and of FlashQLA, in turn on one GPU.

    PYTHONPATH=SITE bench/peers/gated_delta_in_turn.py build/release/ringmaster [--length 4096,16384,65536]
        [--rounds 3] [--seconds 0.2] [--peers ringmaster,fla,flash_qla]

Heads of Qwen3.5 9B, bf16, one sequence. Every round measures each length with all of
them, in another order than the round before. Prints medians in ms and their spread. Times include the normalization of
queries and keys, but neither the convolution nor the gates. The decays of all three have the distribution of new models.

SITE holds the peers: pip install --target SITE flash-linear-attention flash-qla. On Hopper, flash-linear-attention 0.6
needs Triton 3.7.1 or later for its backward, or uses TileLang for a part of it.
"""
import argparse
import csv
import math
import os
import pathlib
import statistics
import subprocess
from collections import defaultdict

import torch
from torch.nn import functional as F
from torch_attention import integers, sustained

os.environ["FLA_FLASH_QLA"] = "0"  # otherwise flash-linear-attention calls FlashQLA if it is installed
KEY_HEADS, VALUE_HEADS, WIDTH = 16, 32, 128
SHAPE = pathlib.Path(__file__).resolve().parent.parent / "shapes" / "qwen05.yaml"
SETTINGS = [
    "model.layers=1", "model.vocab_size=512", "model.mixers=[gated_delta_net]", "train.batch_size=1",
    f"model.gated_delta_net.key_heads={KEY_HEADS}", f"model.gated_delta_net.value_heads={VALUE_HEADS}",
    f"model.gated_delta_net.key_width={WIDTH}", f"model.gated_delta_net.value_width={WIDTH}"
]


def ringmaster(args, length):
    command = [args.program, "bench", "ops", SHAPE, *SETTINGS, f"model.context={length}", "--csv"]
    command += ["--filter", "gated_delta", "--steps", 1, "--seconds", args.seconds]
    out = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout
    for row in csv.DictReader(out.splitlines()):
        if row["op"].startswith("gated_delta"):
            yield "backward" if row["op"].endswith("backward") else "forward", float(row["us"]) / 1e6


def operands(length):
    def random(heads):
        return torch.randn(1, length, heads, WIDTH, device="cuda", dtype=torch.bfloat16)

    def uniform(low, high):
        return torch.empty(VALUE_HEADS, device="cuda").uniform_(low, high)

    a, b = (torch.randn(1, length, VALUE_HEADS, device="cuda") for _ in range(2))
    g = -uniform(0, math.log(16)).exp() * F.softplus(a + uniform(math.log(0.001), math.log(0.1)))
    inputs = [random(KEY_HEADS), random(KEY_HEADS), random(VALUE_HEADS), g, b.sigmoid().bfloat16()]
    return [t.requires_grad_() for t in inputs], random(VALUE_HEADS)


def peer(rule):
    def measure(args, length):
        (q, k, v, g, beta), gradient = operands(length)

        def compute():
            return rule(q, k, v, g, beta, scale=WIDTH**-0.5, use_qk_l2norm_in_kernel=True)[0]

        with torch.no_grad():
            yield "forward", sustained(compute, args.seconds)
        out = compute()
        inputs = (q, k, v, g, beta)
        yield "backward", sustained(lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True), args.seconds)

    return measure


def fla(args, length):
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    return peer(chunk_gated_delta_rule)(args, length)


def flash_qla(args, length):
    from flash_qla import chunk_gated_delta_rule

    return peer(chunk_gated_delta_rule)(args, length)


PEERS = {"ringmaster": ringmaster, "fla": fla, "flash_qla": flash_qla}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program", help="ringmaster")
    parser.add_argument("--length", type=integers, default=[4096, 16384, 65536])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--peers", type=lambda text: text.split(","), default=list(PEERS))
    return parser.parse_args()


def main():
    args = parse()
    seconds = defaultdict(list)
    for n in range(args.rounds):
        order = args.peers[n % len(args.peers):] + args.peers[:n % len(args.peers)]
        for length in args.length:
            for name in order:
                for which, taken in PEERS[name](args, length):
                    seconds[length, which, name].append(taken)
    print("length,pass,peer,ms,spread")
    for (length, which, name), taken in sorted(seconds.items()):
        median = statistics.median(taken)
        print(length, which, name, f"{median * 1e3:.4f}", f"{(max(taken) - min(taken)) / median:.3f}", sep=",")


if __name__ == "__main__":
    main()
