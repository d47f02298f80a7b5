#!/usr/bin/env python3
"""The peer of `ringmaster bench attention`: PyTorch's attention, forward and backward, back to back.

    bench/peers/torch_attention.py [--heads 16] [--kv-heads 16] [--head-dim 64,128] [--length 1024,4096] [--causal | --full]

The same columns and operands as `ringmaster bench attention --csv`: queries, keys and values in one buffer, FLOPs of kept pairs (4 x
heads x head_dim per pair forward, 10 backward). Needs PyTorch 2.5 or later.
"""
import argparse
import time

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def integers(text):
    return [int(part) for part in text.split(",")]


def sustained(queue_one, seconds):
    """Seconds of one call, queued back to back for at least `seconds`."""
    for _ in range(3):
        queue_one()
    torch.cuda.synchronize()
    start = time.perf_counter()
    queue_one()
    torch.cuda.synchronize()
    batch = min(1000, max(1, int(0.02 / (time.perf_counter() - start))))
    calls, start = 0, time.perf_counter()
    while calls == 0 or time.perf_counter() - start < seconds:
        for _ in range(batch):
            queue_one()
        torch.cuda.synchronize()
        calls += batch
    return (time.perf_counter() - start) / calls


def operands(batch, length, heads, kv_heads, dim):
    qkv = torch.randn(batch, length, heads + 2 * kv_heads, dim, device="cuda", dtype=torch.bfloat16)
    parts = qkv.split((heads, kv_heads, kv_heads), 2)
    q, k, v = (part.transpose(1, 2).detach().requires_grad_() for part in parts)
    gradient = torch.randn(batch, length, heads, dim, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    return q, k, v, gradient


def measure(args, backend, dim, length, causal):
    batch = max(1, args.tokens // length)
    q, k, v, gradient = operands(batch, length, args.heads, args.kv_heads, dim)
    gqa = args.kv_heads != args.heads

    def attend():
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=gqa)

    with sdpa_kernel([backend]):
        with torch.no_grad():
            forward = sustained(attend, args.seconds)
        out = attend()
        backward = sustained(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True), args.seconds)
    pairs = batch * (length * (length + 1) / 2 if causal else length * length)
    return batch, pairs * args.heads * dim, forward, backward


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=0, help="0: as many as heads")
    parser.add_argument("--head-dim", type=integers, default=[64, 128])
    parser.add_argument("--length", type=integers, default=[1024 << i for i in range(8)])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--causal", action="store_true", help="only causal")
    parser.add_argument("--full", action="store_true", help="only full")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.2)
    args = parser.parse_args()
    args.kv_heads = args.kv_heads or args.heads
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU")
    torch.use_deterministic_algorithms(args.deterministic)
    masks = [mask for mask, wanted in ((True, args.causal or not args.full), (False, args.full or not args.causal)) if wanted]
    print("pass,candidate,head_dim,causal,length,sequences,deterministic,ms,tflops")
    for dim in args.head_dim:
        for causal in masks:
            for length in args.length:
                for name, backend in BACKENDS.items():
                    try:
                        batch, work, forward, backward = measure(args, backend, dim, length, causal)
                    except RuntimeError as error:  # the backend does not support it, or memory is too short
                        print(f"# {name}, {dim}, {length}: {str(error).splitlines()[0][:100]}", flush=True)
                        torch.cuda.empty_cache()
                        continue
                    for which, seconds, per_pair in (("forward", forward, 4), ("backward", backward, 10)):
                        rate = per_pair * work / seconds / 1e12
                        row = (which, name, dim, int(causal), length, batch, int(args.deterministic))
                        print(*row, f"{seconds * 1e3:.4f}", f"{rate:.3f}", sep=",", flush=True)


if __name__ == "__main__":
    main()
