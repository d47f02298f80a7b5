#!/usr/bin/env python3
"""Attention over blocks that content selects: Ringmaster's, FlashMoBA's and an NSA in Triton, in turn on one GPU.

    PYTHONPATH=SITE bench/peers/selected_in_turn.py build/release/ringmaster
        [--peer nsa,flash_moba] [--length 32768,131072] [--rounds 3] [--seconds 0.3]

Both peers select for each token, FlashMoBA also for each query head; Ringmaster selects for a block of queries and the
heads that share a KV head. So every peer is measured twice: with its own selection, and attending to blocks that are
selected as Ringmaster does, for whole blocks of queries and groups of heads. Ringmaster keeps as many blocks, of the
same size. Every round measures all of a shape one right after the other. Prints medians, TFLOP/s of kept pairs
(4 x heads x head_dim per pair forward, 10 backward) and spreads. First, where every block is kept, outputs and
gradients of a peer are compared with those of PyTorch's dense attention. bf16, causal, heads of 128, one sequence.

nsa: the selected branch and its choice in flash-linear-attention (pip install --target SITE fla-core), blocks of 64,
2 KV heads, since it wants 16 query heads on each; it chooses at most 32 blocks, so that more are given, not selected.
flash_moba: https://github.com/mit-han-lab/flash-moba, chunks of 128, 4 KV heads, at most 64 chunks.
"""
import argparse
import csv
import functools
import statistics
import subprocess
import sys
from collections import defaultdict

import torch
from torch.nn import functional as F
from torch_attention import integers, sustained

HEADS, DIM = 32, 128


def random(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def operands(length, kv_heads):
    return random(length, HEADS, DIM), random(length, kv_heads, DIM), random(length, kv_heads, DIM)


def means(x, block):
    return x.unflatten(0, (-1, block)).float().mean(1)


def queries_of_groups(q, kv_heads, block):
    """[blocks, KV heads, head_dim]: what decides for a block, the mean queries of the block before."""
    pooled = means(q, block).unflatten(1, (kv_heads, -1)).mean(2)
    return torch.cat([torch.zeros_like(pooled[:1]), pooled[:-1]])


def kept_pairs(tokens, blocks, block):
    """Of pairs of a token and a block that it keeps: pairs with the keys that are not behind it."""
    return (tokens - blocks * block + 1).clamp(0, block).sum(dtype=torch.float64).item()


class Nsa:
    """The blocks of each token and KV head: [1, length, KV heads, keep], -1 for none."""
    name, block, kv_heads, most = "nsa", 64, 2, 32

    def __init__(self):
        from fla.ops.nsa import parallel
        from fla.ops.utils.pooling import mean_pooling
        self.ops, self.pool = parallel, mean_pooling

    def select(self, q, k, keep):
        pooled = self.pool(k[None], self.block, None)
        return self.ops.parallel_nsa_topk(q[None], pooled, len(k), None, keep, self.block, DIM**-0.5)

    def select_by_block(self, q, k, keep):
        scores = torch.einsum("igd,jgd->gij", queries_of_groups(q, self.kv_heads, self.block), means(k, self.block))
        own = torch.arange(scores.shape[-1], device="cuda")
        ahead = own[:, None] - own
        scores = scores.masked_fill((ahead < 2) | (own == 0), torch.inf).masked_fill(ahead < 0, -torch.inf)
        best, blocks = scores.topk(keep)
        blocks = blocks.masked_fill(best == -torch.inf, -1).to(torch.int32)
        return blocks.transpose(0, 1).repeat_interleave(self.block, 0)[None].contiguous()

    def attend(self, q, k, v, chosen):
        batch = (t[None] for t in (q, k, v))
        return self.ops.ParallelNSAFunction.apply(*batch, chosen, chosen.shape[-1], self.block, DIM**-0.5, None)[0]

    def pairs(self, chosen):
        tokens = torch.arange(chosen.shape[1], device="cuda")[None, :, None, None]
        chosen = torch.where(chosen < 0, chosen.shape[1], chosen)
        return kept_pairs(tokens, chosen, self.block) * HEADS / self.kv_heads


class FlashMoba:
    """The tokens of each query head and chunk, in one row with offsets and counts."""
    name, block, kv_heads, most = "flash_moba", 128, 4, 64

    def __init__(self):
        from flash_moba import flash_moba_interface
        self.ops = flash_moba_interface

    @functools.cache
    def rows(self, length):
        return [torch.tensor([0, length], device="cuda", dtype=torch.int32)] * 2 + [length] * 2

    def select(self, q, k, keep):
        return self.ops.flash_topk_varlen_func(q, k, *self.rows(len(q)), keep, self.block, causal=True)

    def select_by_block(self, q, k, keep):
        pooled = queries_of_groups(q, self.kv_heads, self.block).to(q.dtype)
        alike = pooled.repeat_interleave(HEADS // self.kv_heads, 1).repeat_interleave(self.block, 0)
        return self.select(alike, k, keep)

    def attend(self, q, k, v, chosen):
        keep = self.keep(chosen, q)
        of_queries = self.ops.decide_lg_block_m(keep, self.block, len(q), True)
        return self.ops.flash_moba_attn_varlen_func(q, k, v, *self.rows(len(q)), *chosen, of_queries, self.block,
                                                    causal=True)

    def keep(self, chosen, q):
        return chosen[2].numel() // (len(q) * HEADS)

    def pairs(self, chosen):
        _, counts, tokens = chosen
        sums, columns = 0, counts.shape[-1]
        of_head = tokens.view(HEADS, -1)
        for head in range(HEADS):
            blocks = torch.arange(columns, device="cuda").repeat_interleave(counts[0, head].long())
            sums += kept_pairs(of_head[head, :len(blocks)], blocks, self.block)
        return sums


PEERS = {peer.name: peer for peer in (Nsa, FlashMoba)}
# (peer, length, kept blocks): about a tenth of the pairs, or as many as the peer's own selection supports.
SHAPES = [("nsa", 32768, 32), ("nsa", 131072, 32), ("nsa", 131072, 128), ("flash_moba", 32768, 13),
          ("flash_moba", 131072, 51)]


def gradients(out, inputs, gradient):
    return torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def tune(peer, length):
    """Triton compares its configurations in the first call, whatever its length."""
    inputs = [t.requires_grad_() for t in operands(length, peer.kv_heads)]
    out = peer.attend(*inputs, peer.select(*(t.detach() for t in inputs[:2]), 32))
    gradients(out, inputs, torch.ones_like(out))
    torch.cuda.synchronize()


def check(peer):
    """With as many blocks kept as there are, attention is dense."""
    length = 16 * peer.block
    inputs = [t.requires_grad_() for t in operands(length, peer.kv_heads)]
    gradient = random(length, HEADS, DIM)
    chosen = peer.select(*(t.detach() for t in inputs[:2]), 16)
    out = peer.attend(*inputs, chosen)
    exact = [t.detach().double().requires_grad_() for t in inputs]
    of_heads = [t.transpose(0, 1)[None] for t in exact]
    dense = F.scaled_dot_product_attention(*of_heads, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
    found, expected = (out, *gradients(out, inputs, gradient)), (dense, *gradients(dense, exact, gradient.double()))
    errors = [((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, expected)]
    pairs = peer.pairs(chosen) / (HEADS * length * (length + 1) / 2)
    print(f"# {peer.name}: errors of out, dq, dk, dv", *(f"{e:.1e}" for e in errors), f"of all {length} tokens; "
          f"pairs {pairs:.4f}", flush=True)
    if not max(errors) < 2e-2 or abs(pairs - 1) > 1e-9:
        raise SystemExit(f"{peer.name} does not compute attention: nothing to compare with")


def measure(args, peer, length, keep):
    q, k, v = operands(length, peer.kv_heads)
    ways = {"of each token": peer.select, "of each block": peer.select_by_block}
    for way, select in ways.items():
        if select == peer.select:
            if keep > peer.most:
                continue
            yield way, "select", sustained(lambda: peer.select(q, k, keep), args.seconds), 0
        chosen = select(q, k, keep)
        pairs = peer.pairs(chosen)
        with torch.no_grad():
            yield way, "forward", sustained(lambda: peer.attend(q, k, v, chosen), args.seconds), 4 * DIM * pairs
        inputs = [t.detach().requires_grad_() for t in (q, k, v)]
        out, gradient = peer.attend(*inputs, chosen), random(length, HEADS, DIM)
        yield way, "backward", sustained(lambda: gradients(out, inputs, gradient), args.seconds), 10 * DIM * pairs


def ringmaster(args, peer, length, keep):
    command = [args.program, "bench", "attention", "--csv", "--causal", "--candidate", "own_sm90"]
    command += ["--heads", HEADS, "--kv-heads", peer.kv_heads, "--head-dim", DIM, "--length", length]
    command += ["--tokens", length, "--seconds", args.seconds]
    command += ["--kind", "block_sparse", "--block", peer.block, "--keep", keep]
    out = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout
    for row in csv.DictReader(out.splitlines()):
        order = ", any order" if row["pass"] == "backward" and row["deterministic"] == "0" else ""
        seconds = float(row["ms"]) / 1e3
        yield "ringmaster", row["pass"] + order, seconds, float(row["tflops"]) * 1e12 * seconds


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program", help="ringmaster")
    parser.add_argument("--peer", default="nsa,flash_moba")
    parser.add_argument("--length", type=integers, default=[32768, 131072])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3)
    return parser.parse_args()


def main():
    args = parse()
    torch.manual_seed(1)
    peers = {name: PEERS[name]() for name in args.peer.split(",")}
    for peer in peers.values():
        tune(peer, args.length[0])
        check(peer)
    shapes = [shape for shape in SHAPES if shape[0] in peers and shape[1] in args.length]
    seconds, flops = defaultdict(list), {}
    for n in range(args.rounds):
        for shape in shapes:
            for who in (measure, ringmaster)[::1 if n % 2 == 0 else -1]:
                for way, which, taken, work in who(args, peers[shape[0]], *shape[1:]):
                    print("#", n, *shape, way, which, f"{taken * 1e3:.3f} ms", file=sys.stderr, flush=True)
                    seconds[shape, way, which].append(taken)
                    flops[shape, way, which] = work
                torch.cuda.empty_cache()
    print("peer,length,keep,who,pass,ms,tflops,kept,spread")
    for (shape, way, which), taken in seconds.items():
        median, (peer, length, keep), work = statistics.median(taken), shape, flops[shape, way, which]
        kept = work / ((4 if which == "forward" else 10) * DIM * HEADS * length * (length + 1) / 2)
        spread = (max(taken) - min(taken)) / median
        print(peer, length, keep, way, f'"{which}"', f"{median * 1e3:.4f}", f"{work / median / 1e12:.1f}",
              f"{kept:.4f}", f"{spread:.3f}", sep=",", flush=True)


if __name__ == "__main__":
    main()
