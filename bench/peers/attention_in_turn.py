#!/usr/bin/env python3
"""Attention of Ringmaster, of FlashAttention-4 and of PyTorch (cuDNN), in turn on one GPU, forward and backward.

    PYTHONPATH=SITE:SITE/nvidia_cutlass_dsl/dsl_packages bench/peers/attention_in_turn.py build/release/ringmaster
        [--head-dim 128,64] [--length 4096,8192,16384,32768] [--window 1024] [--rounds 3] [--seconds 0.3] [--rest 0]

Every round measures each shape with all of them, one right after the other, in another order than the round before.
Prints medians in TFLOP/s of kept pairs (4 x heads x head_dim per pair forward, 10 backward) and their spread.
`--rest` is without work, before every one of those measurements: `--seconds 1e-3 --rest 0.5` measures bursts of some 20
ms on a rested GPU, `--seconds 0.3` the rate at the GPU's power limit. Causal, bf16; the window is measured at the last
length.

SITE holds FlashAttention-4 and what it needs: pip install --pre --target SITE flash-attn-4 'nvidia-cutlass-dsl[cu13]'
"""
import argparse
import csv
import statistics
import subprocess
import time
from collections import defaultdict

import torch
from flash_attn.cute import flash_attn_func
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch_attention import integers, sustained


def ringmaster(args, dim, length, window):
    command = [args.program, "bench", "attention", "--csv", "--causal", "--candidate", "own_sm90", "--head-dim", dim]
    command += ["--heads", args.heads, "--length", length, "--tokens", args.tokens]
    command += ["--seconds", args.seconds, "--rest", args.rest]
    command += ["--kind", "window", "--window", window] if window else []
    out = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout
    for row in csv.DictReader(out.splitlines()):
        order = "any order" if row["deterministic"] == "0" else "deterministic"
        yield "forward" if row["pass"] == "forward" else f"backward, {order}", float(row["ms"]) / 1e3


def operands(args, dim, length, heads_first):
    shape = (max(1, args.tokens // length), length, args.heads, dim)
    q, k, v, gradient = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    lay = (lambda t: t.transpose(1, 2).detach()) if heads_first else (lambda t: t)
    return *(lay(t).requires_grad_() for t in (q, k, v)), lay(gradient)


def measured(args, queue_one):
    queue_one()  # the first call compiles
    torch.cuda.synchronize()
    time.sleep(args.rest)
    return sustained(queue_one, args.seconds)


def backward(args, out, inputs, gradient):
    return measured(args, lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True))


def flash_attention_4(args, dim, length, window):
    q, k, v, gradient = operands(args, dim, length, heads_first=False)
    reach = {"window_size": (window - 1, 0)} if window else {}

    def attend(**options):
        out = flash_attn_func(q, k, v, causal=not window, **reach, **options)
        return out[0] if isinstance(out, tuple) else out

    with torch.no_grad():
        yield "forward", measured(args, attend)
    for order in ("deterministic", "any order"):
        out = attend(deterministic=order == "deterministic")
        yield f"backward, {order}", backward(args, out, (q, k, v), gradient)


def cudnn(args, dim, length, window):
    if window:
        return
    q, k, v, gradient = operands(args, dim, length, heads_first=True)

    def attend():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        with torch.no_grad():
            yield "forward", measured(args, attend)
        yield "backward, any order", backward(args, attend(), (q, k, v), gradient)


PEERS = {"ringmaster": ringmaster, "FlashAttention-4": flash_attention_4, "cuDNN": cudnn}


def pairs(args, length, window):
    reach = window or length
    return max(1, args.tokens // length) * args.heads * (length * reach - reach * (reach - 1) / 2)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program", help="ringmaster")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--head-dim", type=integers, default=[128, 64])
    parser.add_argument("--length", type=integers, default=[4096, 8192, 16384, 32768])
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--window", type=int, default=1024, help="0: none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--rest", type=float, default=0, help="seconds without work before each of them")
    return parser.parse_args()


def main():
    args = parse()
    shapes = [(dim, length, 0) for dim in args.head_dim for length in args.length]
    shapes += [(dim, args.length[-1], args.window) for dim in args.head_dim if args.window]
    seconds = defaultdict(list)
    for n in range(args.rounds):
        order = list(PEERS)[n % len(PEERS):] + list(PEERS)[:n % len(PEERS)]
        for shape in shapes:
            for peer in order:
                for which, taken in PEERS[peer](args, *shape):
                    seconds[shape, which, peer].append(taken)
    print("head_dim,length,window,pass,peer,ms,tflops,spread")
    for (shape, which, peer), taken in sorted(seconds.items(), key=lambda item: (shapes.index(item[0][0]), item[0][1])):
        median, (dim, length, window) = statistics.median(taken), shape
        rate = (4 if which == "forward" else 10) * dim * pairs(args, length, window) / median / 1e12
        spread = (max(taken) - min(taken)) / median
        print(dim, length, window, f'"{which}"', peer, f"{median * 1e3:.4f}", f"{rate:.1f}", f"{spread:.3f}", sep=",",
              flush=True)


if __name__ == "__main__":
    main()
