#!/usr/bin/env python3
"""The peer of scripts/nanogpt_cpu.sh: nanoGPT's CPU configuration in PyTorch, on the same text.

    bench/peers/nanogpt_torch.py TEXT [--steps 2000] [--threads 1] [--seed 1337] [--compile]

The first line names the PyTorch that was measured: Debian's python3-torch is 1.13, which is several years old and slower
than the current package, so say which one a figure is of. The last line is val_loss=<nats per character over the whole
validation split> step_ms=<median time of a step>. Runs on torch 1.13 and later; uses fused attention if there is one.
"""
import argparse
import math
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

LAYERS, HEADS, WIDTH, CONTEXT, BATCH, WARMUP = 4, 4, 128, 64, 12, 100


class LayerNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return F.layer_norm(x, (WIDTH,), self.weight, None, 1e-5)


def causal_attention(q, k, v):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    future = torch.ones(q.size(-2), q.size(-2), dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1) @ v


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = LayerNorm(), LayerNorm()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.wo = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        rows, length, _ = x.shape
        heads = self.qkv(self.attention_norm(x)).view(rows, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = causal_attention(heads[0], heads[1], heads[2])
        x = x + self.wo(y.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class Decoder(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.final_norm = LayerNorm()
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                output = name.endswith(("wo.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * LAYERS) if output else 0.02)

    def loss(self, inputs, targets):
        x = self.tokens(inputs) + self.positions.weight[: inputs.size(1)]
        for block in self.blocks:
            x = block(x)
        logits = self.final_norm(x) @ self.tokens.weight.T
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def learning_rate(step, steps):
    if step < WARMUP:
        return 1e-3 * (step + 1) / WARMUP
    return 1e-4 + 9e-4 * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / max(1, steps - WARMUP)))


def validation_loss(model, split):
    windows = (len(split) - 1) // CONTEXT
    total = 0.0
    with torch.no_grad():
        for first in range(0, windows, 128):
            last = min(windows, first + 128)
            part = split[first * CONTEXT : last * CONTEXT + 1]
            loss = model.loss(part[:-1].view(-1, CONTEXT), part[1:].view(-1, CONTEXT))
            total += loss.item() * (last - first)
    return total / windows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("text")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--compile", action="store_true", help="torch.compile the loss")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    with open(args.text, encoding="utf-8") as file:
        text = file.read()
    index = {c: i for i, c in enumerate(sorted(set(text)))}
    ids = torch.tensor([index[c] for c in text])
    train, validation = ids[: int(0.9 * len(ids))], ids[int(0.9 * len(ids)) :]

    model = Decoder(len(index))
    loss_of = torch.compile(model.loss) if args.compile else model.loss
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99))
    seconds = []
    for step in range(args.steps):
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps)
        places = torch.randint(len(train) - CONTEXT - 1, (BATCH,)).tolist()
        inputs = torch.stack([train[i : i + CONTEXT] for i in places])
        targets = torch.stack([train[i + 1 : i + CONTEXT + 1] for i in places])
        loss_of(inputs, targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads{', compiled' if args.compile else ''}")
    print(f"val_loss={validation_loss(model, validation):.4f} step_ms={statistics.median(seconds) * 1e3:.2f}")


if __name__ == "__main__":
    main()
