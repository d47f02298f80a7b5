#!/usr/bin/env python3
"""What fewer queries to a choice of blocks are worth: the model of configs/quality.yaml, in PyTorch, on a corpus.

    bench/peers/torch_selection.py CORPUS --select dense|window|block|32|16|8|token [--from STEP] [--steps 1800]
        [--local 5] [--keep 8] [--seed 1]

A head chooses --keep blocks of 64 keys for the queries of a block (as `pattern: content` does), for groups of 32, 16 or
8 queries, or for each token: by the mean query of the group before, or by the token's own query. The --local newest
blocks and the first are always among them. window is the newest eighth of the context and the first four tokens.
Attention is dense before step --from. CORPUS is of `ringmaster data prepare`; shape, Muon and AdamW, schedule and batch
are those of the configuration, in bf16; initial weights are PyTorch's, and the order of samples is NumPy's.

First, changed tokens must not change logits before them. Prints six lines of JSON: losses in nats, and by layer, for
the first validation sample (nothing while attention is dense): the share of dense attention's weight over the same
queries and keys that is kept (weight), kept pairs (pairs), and pairs of all tiles of 128 queries by 64 keys in which a
pair is kept (tiles), both relative to the pairs of dense attention, whose tiles have a little more than 1 (1.031 at
4096 tokens). Needs PyTorch 2.4 or later, NumPy and h5py.
"""
import argparse
import json
import math
import time
from collections import defaultdict

import h5py
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

BLOCK, TILE = 64, 128  # keys per block; queries per tile
UNITS = {"block": BLOCK, "32": 32, "16": 16, "8": 8, "token": 1}
RATE, WEIGHT_DECAY, WARMUP = 1.5e-3, 0.1, 100
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def causal(length):
    return torch.ones(length, length, dtype=torch.bool, device=DEVICE).tril()


def deciding_queries(q, unit):
    """[batch, heads, groups, head_dim]: a token's own query, or the mean of the group before (of none: zeros)."""
    means = q.float().unflatten(2, (-1, unit)).mean(3)
    return means if unit == 1 else torch.cat([torch.zeros_like(means[:, :, :1]), means[:, :, :-1]], 2)


def kept_blocks(q, k, unit, local, keep):
    """What groups of `unit` queries keep, [batch, heads, groups, blocks]; q, k: [batch, heads, length, head_dim]."""
    blocks = q.shape[2] // BLOCK
    scores = deciding_queries(q, unit) @ k.float().unflatten(2, (-1, BLOCK)).mean(3).mT
    key_block = torch.arange(blocks, device=q.device)
    distance = (torch.arange(q.shape[2] // unit, device=q.device) * unit // BLOCK)[:, None] - key_block
    forced = (distance >= 0) & ((distance < local) | (key_block < 1))
    scores = scores.masked_fill(distance < 0, -torch.inf).masked_fill(forced, torch.inf)
    best = scores.topk(min(keep, blocks), -1)
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best.indices, best.values > -torch.inf)


def chooser(args):
    """A function of q and k that returns the kept pairs, [1 or batch, 1 or heads, length, length]; None for dense."""
    if args.select == "dense":
        return None
    past = causal(args.context)
    if args.select == "window":
        window = past & ~past.tril(-(args.context // 8))
        window[:, :4] |= past[:, :4]
        return lambda q, k: window[None, None]
    unit = UNITS[args.select]

    @torch.no_grad()
    def choose(q, k):
        kept = kept_blocks(q, k, unit, args.local, args.keep)
        return kept.repeat_interleave(unit, 2).repeat_interleave(BLOCK, 3) & past

    return choose


def shares(q, k, kept):
    """Of one sequence: dense attention's weight on kept pairs, those pairs, and the pairs of tiles that have any."""
    past = causal(q.shape[2])
    scores = (q.float() @ k.float().mT / math.sqrt(q.shape[3])).masked_fill(~past, -torch.inf)
    tiles = kept.unflatten(3, (-1, BLOCK)).any(4).unflatten(2, (-1, TILE)).any(3)
    pairs = past.sum().item() * kept.shape[1]
    weight = (scores.softmax(-1) * kept).sum(-1).mean().item()
    return weight, kept.sum().item() / pairs, tiles.sum().item() * TILE * BLOCK / pairs


def attend(q, k, v, choose, record):
    if choose is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    kept = choose(q, k)
    if record is not None:
        record.append(shares(q, k, kept))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=kept.expand(*q.shape[:2], -1, -1))


def rotate(x, cos, sin):
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, layers, width, heads):
        super().__init__()
        self.heads = heads
        mlp_width = (width * 8 // 3 + 31) // 32 * 32
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, mlp_width, bias=False) for _ in range(2))
        self.down = nn.Linear(mlp_width, width, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                output = name in ("wo.weight", "down.weight")
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * layers) if output else 1))

    def forward(self, x, cos, sin, choose, record):
        y = self.attention_norm(x)
        q, k, v = (w(y).unflatten(2, (self.heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = attend(rotate(q, cos, sin), rotate(k, cos, sin), v, choose, record)
        x = x + self.wo(y.transpose(1, 2).flatten(2))
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self, args, vocab):
        super().__init__()
        self.tokens = nn.Embedding(vocab, args.width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(args.layers, args.width, args.heads) for _ in range(args.layers))
        self.final_norm = nn.RMSNorm(args.width)
        head_dim = args.width // args.heads
        frequencies = 1 / 10000 ** (torch.arange(0, head_dim, 2) / head_dim)
        angles = torch.arange(args.context)[:, None] * frequencies
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, inputs, choose=None, record=None):
        x = self.tokens(inputs)
        for block in self.blocks:
            x = block(x, self.cos, self.sin, choose, record)
        return (self.final_norm(x) @ self.tokens.weight.T).float()

    def loss(self, inputs, targets, choose):
        return F.cross_entropy(self(inputs, choose).flatten(0, 1), targets.flatten())


def orthogonal(u):
    """Matrices [n, rows, columns] with singular values near 1: five Newton-Schulz iterations."""
    tall = u.shape[1] > u.shape[2]
    x = u.bfloat16().mT if tall else u.bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if tall else x


class Muon:
    """Matrices of a shape are updated together."""

    def __init__(self, matrices):
        self.groups = defaultdict(list)
        for matrix in matrices:
            self.groups[tuple(matrix.shape)].append(matrix)
        self.momenta = {shape: torch.zeros(len(group), *shape, device=DEVICE) for shape, group in self.groups.items()}

    @torch.no_grad()
    def step(self, rate):
        for shape, group in self.groups.items():
            gradients = torch.stack([matrix.grad for matrix in group])
            momenta = self.momenta[shape].mul_(0.95).add_(gradients)
            for matrix, update in zip(group, orthogonal(gradients.add(momenta, alpha=0.95))):
                scale = -rate * 0.2 * math.sqrt(max(shape))
                matrix.mul_(1 - rate * WEIGHT_DECAY).add_(update.to(matrix.dtype), alpha=scale)


class Optimizer:
    """Muon for the matrices of blocks, AdamW for the embedding and the norms."""

    def __init__(self, model):
        self.model = model
        self.muon = Muon([p for p in model.blocks.parameters() if p.dim() == 2])
        norms = [p for p in model.parameters() if p.dim() == 1]
        groups = [{"params": [model.tokens.weight], "weight_decay": WEIGHT_DECAY}, {"params": norms, "weight_decay": 0}]
        self.adamw = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.98))

    def step(self, rate):
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.adamw.step()
        self.muon.step(rate)
        self.model.zero_grad(set_to_none=True)


def learning_rate(step, steps):
    """wsd: linear to RATE and, in the last 400 of 1800 steps, to a twentieth of it."""
    decay = max(WARMUP, steps * 400 // 1800)
    left = 1 if step < steps - decay else 1 - 0.95 * (step - steps + decay + 1) / decay
    return RATE * min(1, (step + 1) / WARMUP) * left


def samples(tokens, places, context):
    """Inputs and targets of the samples that begin at `places`, in contexts: int64 [batch, context]."""
    rows = np.stack([tokens[place * context : (place + 1) * context + 1] for place in places])
    batch = torch.from_numpy(rows.astype(np.int64)).to(DEVICE)
    return batch[:, :-1], batch[:, 1:]


def bf16():
    return torch.autocast(DEVICE, torch.bfloat16)


@torch.no_grad()
def check(args, model, tokens, choose):
    """Tokens that change must change logits from there on, and none before."""
    inputs, _ = samples(tokens, [0], args.context)
    same = args.context // 2 + 37  # in the middle of a group, for every group size
    other = inputs.clone()
    other[:, same:] = other[:, same:].flip(1).roll(1, 1)
    with bf16():
        change = (model(inputs, choose) - model(other, choose)).abs().amax((0, 2))
    if not change[:same].max() < 1e-3 < change[same:].max():
        raise SystemExit(f"logits depend on later tokens, or on none: they change by {change[:same].max():.1e} before "
                         f"changed tokens, and by {change[same:].max():.1e} from them on")


@torch.no_grad()
def validation_loss(args, model, tokens, choose):
    batches = (len(tokens) - 1) // args.context // args.batch
    total = 0.0
    for n in range(batches):
        places = range(n * args.batch, (n + 1) * args.batch)
        with bf16():
            total += model.loss(*samples(tokens, places, args.context), choose).item()
    return total / batches


@torch.no_grad()
def shares_by_layer(args, model, tokens, choose):
    record = []
    with bf16():
        model(samples(tokens, [0], args.context)[0], choose, record)
    return {name: [round(layer[i], 3) for layer in record] for i, name in enumerate(("weight", "pairs", "tiles"))}


def train(args, model, splits):
    """Yields, six times, the number of steps, the loss of the last and how its attention chose."""
    order = np.random.default_rng(args.seed).permutation((len(splits["train"]) - 1) // args.context)
    optimizer, chosen = Optimizer(model), chooser(args)
    for step in range(args.steps):
        choose = chosen if step >= args.start else None
        places = [order[(step * args.batch + row) % len(order)] for row in range(args.batch)]
        with bf16():
            loss = model.loss(*samples(splits["train"], places, args.context), choose)
        loss.backward()
        optimizer.step(learning_rate(step, args.steps))
        if (step + 1) * 6 // args.steps > step * 6 // args.steps:
            yield step + 1, loss.item(), choose


def read(args):
    """The vocabulary's size and the tokens of both splits."""
    try:
        with h5py.File(args.corpus) as file:
            splits = {name: file[f"{name}/tokens"][:] for name in ("train", "validation")}
            vocab = int(file.attrs["vocab_size"])
    except (OSError, KeyError) as error:
        raise SystemExit(f"{args.corpus} is not a corpus with both splits: {error}. "
                         "Make one with `ringmaster data prepare`")
    for name, tokens in splits.items():
        if len(tokens) <= args.batch * args.context:
            raise SystemExit(f"{args.corpus}: {name} has {len(tokens)} tokens, but a batch needs more. "
                             "Prepare more text or set --batch or --context")
    return vocab, splits


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("corpus", metavar="CORPUS", help="a .h5 file")
    parser.add_argument("--select", choices=["dense", "window", *UNITS], required=True)
    parser.add_argument("--from", dest="start", metavar="STEP", type=int, default=0, help="dense before this step")
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--local", type=int, default=5, help="most recent blocks, including the token's own")
    parser.add_argument("--keep", type=int, default=8, help="total number of blocks")
    parser.add_argument("--seed", type=int, default=1, help="of weights and of the order of samples")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4, help="samples")
    args = parser.parse_args()
    if args.context < TILE or args.context % TILE:
        parser.error(f"--context must be a multiple of {TILE}")
    if min(args.layers, args.width, args.heads, args.batch) < 1:
        parser.error("--layers, --width, --heads and --batch must be at least 1")
    if args.width % (2 * args.heads):
        parser.error("--width must be a multiple of twice --heads")
    if not 1 <= args.local < args.keep:
        parser.error("--local must be at least 1 and below --keep: the first block is kept, too")
    if args.steps < 6:
        parser.error("--steps must be at least 6")
    return args


def main():
    args = parse()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    vocab, splits = read(args)
    model = Decoder(args, vocab).to(DEVICE)
    check(args, model, splits["validation"], chooser(args))
    start = time.time()
    about = {"select": args.select, "from": args.start, "local": args.local, "keep": args.keep, "seed": args.seed}
    for step, loss, choose in train(args, model, splits):
        held_out = validation_loss(args, model, splits["validation"], choose)
        line = about | {"step": step, "train": round(loss, 4), "validation": round(held_out, 4)}
        line["seconds"] = round(time.time() - start)
        print(json.dumps(line | shares_by_layer(args, model, splits["validation"], choose)), flush=True)


if __name__ == "__main__":
    main()
