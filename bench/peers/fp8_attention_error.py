#!/usr/bin/env python3
"""What rounding the operands of attention to FP8 costs in accuracy, beside PyTorch's bf16 kernel.

    bench/peers/fp8_attention_error.py

Prints errors of causal attention's output relative to float64, in the Frobenius norm. Only the named operands are rounded to
e4m3, with powers of two as scales, each for a row of a head or for a block of 128 rows; products and softmax are float64.
"Rotated" multiplies q and k by a random Hadamard matrix. Needs a GPU and PyTorch 2.1 or later.
"""
import math

import torch

HEADS, TOKENS, DIM, BLOCK = 8, 4096, 128, 128
DEVICE = "cuda"


def random_hadamard(n):
    h = torch.ones(1, 1, dtype=torch.float64, device=DEVICE)
    while h.shape[0] < n:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    signs = torch.randint(0, 2, (n,), device=DEVICE).double() * 2 - 1
    return h / math.sqrt(n) * signs


def e4m3(x, rows):
    """Rounds x [HEADS,TOKENS,DIM] with one scale for `rows` rows."""
    blocks = x.view(HEADS, TOKENS // rows, rows * DIM)
    scale = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 448)))
    return ((blocks / scale).float().to(torch.float8_e4m3fn).double() * scale).view_as(x)


def e4m3_probabilities(p):
    return (p * 256).float().to(torch.float8_e4m3fn).double() / 256


def attend(q, k, v, round_p=lambda p: p):
    out = torch.empty_like(q)
    mask = torch.ones(TOKENS, TOKENS, device=DEVICE, dtype=torch.bool).tril()
    for h in range(HEADS):
        scores = (q[h] @ k[h].T / math.sqrt(DIM)).masked_fill(~mask, -math.inf)
        p = torch.exp(scores - scores.amax(-1, keepdim=True))
        out[h] = round_p(p) @ v[h] / p.sum(-1, keepdim=True)
    return out


def bf16_kernel(q, k, v):
    heads = [t.bfloat16()[None] for t in (q, k, v)]
    return torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)[0].double()


def main():
    torch.manual_seed(1)
    rotation = random_hadamard(DIM)
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
    for name in ("normal", "outliers"):
        x = torch.randn(3, HEADS, TOKENS, DIM, dtype=torch.float64, device=DEVICE)
        if name == "outliers":
            x += torch.randn_like(x) * 10 * (torch.rand_like(x) < 1e-3)
        q, k, v = (t.bfloat16().double() for t in x)
        want = attend(q, k, v)
        results = {"bf16 kernel of PyTorch": bf16_kernel(q, k, v),
                   "q and k, by row": attend(e4m3(q, 1), e4m3(k, 1), v),
                   "q and k rotated, by row": attend(e4m3(q @ rotation, 1), e4m3(k @ rotation, 1), v),
                   "v, by row": attend(q, k, e4m3(v, 1)),
                   "P": attend(q, k, v, e4m3_probabilities)}
        for how, rows in (("row", 1), (f"blocks of {BLOCK} rows", BLOCK)):
            rounded = [e4m3(t, rows) for t in (q @ rotation, k @ rotation, v)]
            results[f"all, rotated, by {how}"] = attend(*rounded, e4m3_probabilities)
        for operands, out in results.items():
            print(f"{name:9s} {operands:36s} {(out - want).norm() / want.norm():.2e}")


if __name__ == "__main__":
    main()
