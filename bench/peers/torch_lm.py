#!/usr/bin/env python3
"""The peer of `ringmaster bench step`: training steps of bench/shapes/*.yaml in PyTorch, as fast as its compiler makes them.

    bench/peers/torch_lm.py gpt2 [1b ...] [--csv results.csv] [--steps 10] [--warmup 5] [--fp8 tensorwise]

torch.compile, weights, gradients and moments in bf16, fused AdamW, gradients clipped to norm 1, attention through
scaled_dot_product_attention (cuDNN or FlashAttention, whichever PyTorch prefers), random tokens. A step's time is the median of the
timed ones, each between two synchronisations. With torchrun: data parallel (DDP), or with --fsdp sharded (FSDP2, each block a unit
that is compiled by itself, everything in bf16). Needs PyTorch 2.6 or later and PyYAML.

--fp8 makes the linear layers of blocks compute in FP8, on one GPU; the head and the embedding stay in bf16. tensorwise and rowwise
are recipes of torchao (0.17 goes with PyTorch 2.11), compiled with the rest. Add --compile-blocks: a whole model of 1B compiles for
more than a minute. te_current and te_blocks are Transformer Engine's current scaling (one scale per tensor) and block scaling. Its
LayerNormLinear, Linear and LayerNormMLP have kernels of their own, so that torch.compile sees only RoPE, attention and the loss.
"""
import argparse
import contextlib
import os
import statistics
import time

import torch
import torch._functorch.config
from torch import nn
from torch.nn import functional as F

import shapes

PEAK_FLOPS = 989e12  # dense bf16 FLOP/s of an H100 or H200, from the data sheet
COLUMNS = "who,shape,step_ms,tokens_per_second,first_seconds,peak_gib,loss"


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, (x.size(-1),), self.weight)


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)


def attention(qkv, heads, kv_heads, cos, sin):
    batch, length, width = qkv.shape
    head_dim = width // (heads + 2 * kv_heads)
    sizes = [count * head_dim for count in (heads, kv_heads, kv_heads)]
    q, k, v = (part.view(batch, length, -1, head_dim).transpose(1, 2) for part in qkv.split(sizes, -1))
    y = F.scaled_dot_product_attention(
        rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=kv_heads != heads
    )
    return y.transpose(1, 2).reshape(batch, length, -1)


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads = s.heads, s.kv_heads
        self.attention_norm, self.mlp_norm = RMSNorm(s.width), RMSNorm(s.width)
        self.qkv = nn.Linear(s.width, (s.heads + 2 * s.kv_heads) * s.head_dim, bias=False)
        self.out = nn.Linear(s.heads * s.head_dim, s.width, bias=False)
        self.gate_up = nn.Linear(s.width, 2 * s.mlp_width, bias=False)
        self.down = nn.Linear(s.mlp_width, s.width, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.out(attention(self.qkv(self.attention_norm(x)), *self.heads, cos, sin))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class TransformerEngineBlock(nn.Module):
    def __init__(self, s):
        super().__init__()
        import transformer_engine.pytorch as te

        options = {"bias": False, "params_dtype": torch.bfloat16, "device": "cuda"}
        norm = {"normalization": "RMSNorm", **options}
        self.heads = s.heads, s.kv_heads
        self.qkv = te.LayerNormLinear(s.width, (s.heads + 2 * s.kv_heads) * s.head_dim, **norm)
        self.out = te.Linear(s.heads * s.head_dim, s.width, **options)
        self.mlp = te.LayerNormMLP(s.width, s.mlp_width, activation="swiglu", **norm)
        self.attention = torch.compile(attention)

    def forward(self, x, cos, sin):
        x = x + self.out(self.attention(self.qkv(x), *self.heads, cos, sin))
        return x + self.mlp(x)


class Decoder(nn.Module):
    def __init__(self, s, block):
        super().__init__()
        self.tokens = nn.Embedding(s.vocab, s.width)
        self.blocks = nn.ModuleList(block(s) for _ in range(s.layers))
        self.final_norm = RMSNorm(s.width)
        self.head = nn.Linear(s.width, s.vocab, bias=False)
        frequencies = 10000.0 ** -(torch.arange(0, s.head_dim, 2).float() / s.head_dim)
        angles = torch.outer(torch.arange(s.context).float(), frequencies)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs, targets):
        x = self.tokens(inputs)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.loss(x, targets)

    def loss(self, x, targets):
        logits = self.head(self.final_norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def seconds_since_process_start():
    """As ringmaster counts its first step; Linux."""
    with open("/proc/self/stat", encoding="ascii") as stat, open("/proc/uptime", encoding="ascii") as uptime:
        start = int(stat.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return float(uptime.read().split()[0]) - start


def compile_parts(model):
    for block in model.blocks:
        block.compile()
    model.loss = torch.compile(model.loss)
    return model


def shard(model):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        block.compile()
        fully_shard(block)
    fully_shard(model)
    return model


def use_torchao(model, recipe):
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig.from_recipe_name(recipe)
    convert_to_float8_training(model, config=config, module_filter_fn=lambda _, name: name.startswith("blocks."))


def transformer_engine_autocast(recipe):
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import Float8BlockScaling, Float8CurrentScaling

    return te.autocast(recipe=Float8CurrentScaling() if recipe == "te_current" else Float8BlockScaling())


def measure(s, steps, warmup, ranks, fsdp, fp8, parts):
    te = fp8 in ("te_current", "te_blocks")
    with torch.device("cuda"):
        model = Decoder(s, TransformerEngineBlock if te else Block).bfloat16()
    if fp8 and not te:
        use_torchao(model, fp8)
    if fsdp:
        compiled = shard(model)
        torch.cuda.empty_cache()
    elif ranks > 1:
        device = torch.cuda.current_device()
        compiled = torch.compile(
            nn.parallel.DistributedDataParallel(model, device_ids=[device], gradient_as_bucket_view=True)
        )
    elif te:
        model.loss = torch.compile(model.loss)
        compiled = model
    elif parts:
        compiled = compile_parts(model)
    else:
        compiled = torch.compile(model)
    torch.cuda.reset_peak_memory_stats()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=s.learning_rate, fused=True)
    inputs, targets = torch.randint(s.vocab, (2, s.batch, s.context), device="cuda")
    seconds = []
    for step in range(warmup + steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        with transformer_engine_autocast(fp8) if te else contextlib.nullcontext():
            loss = compiled(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        if step == 0:
            first = seconds_since_process_start()
    return statistics.median(seconds[warmup:]), first, torch.cuda.max_memory_allocated() / 2**30, loss.item()


def report(s, step, first, peak, loss, ranks, who, csv):
    rate = s.tokens * ranks / step
    mfu = rate / ranks * s.flops_per_token() / PEAK_FLOPS
    print(
        f"{s.name}, {who}: step {step * 1e3:.2f} ms, {rate:.0f} tokens/s, "
        f"MFU {100 * mfu:.1f} % of {PEAK_FLOPS / 1e12:.0f} TFLOP/s, {ranks} GPU, "
        f"process start to end of first step {first:.1f} s, peak memory {peak:.2f} GiB, loss {loss:.4f}",
        flush=True,
    )
    if not csv:
        return
    fresh = not os.path.exists(csv) or os.path.getsize(csv) == 0
    with open(csv, "a", encoding="utf-8") as file:
        if fresh:
            file.write(COLUMNS + "\n")
        file.write(f"{who},{s.name},{step * 1e3:.4f},{rate:.1f},{first:.2f},{peak:.3f},{loss:.5f}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("shapes", nargs="+", help=", ".join(shapes.names()))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--fsdp", action="store_true", help="shard parameters, gradients and moments (FSDP2)")
    parser.add_argument(
        "--fp8",
        choices=["tensorwise", "rowwise", "te_current", "te_blocks"],
        help="linear layers of blocks in FP8: recipes of torchao, or current or block scaling of Transformer Engine",
    )
    parser.add_argument(
        "--compile-blocks", action="store_true", help="compile each block by itself, which takes less time than the model"
    )
    parser.add_argument(
        "--memory-budget", type=float, help="share of activations that torch.compile keeps, 0 to 1; it recomputes the rest"
    )
    parser.add_argument("--csv", help="append a line for each shape to this file")
    args = parser.parse_args()
    if args.steps < 1 or args.warmup < 0:
        parser.error("--steps must be at least 1, --warmup at least 0")
    if args.memory_budget is not None:
        torch._functorch.config.activation_memory_budget = args.memory_budget
    chosen = [shapes.load(name) for name in args.shapes]
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU")
    ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if args.fsdp and ranks == 1:
        parser.error("--fsdp needs several processes: start with torchrun")
    if ranks > 1 and (args.fp8 or args.compile_blocks):
        parser.error("--fp8 and --compile-blocks are for one process")
    if ranks > 1:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group("nccl")
    who = "pytorch" if ranks == 1 else f"pytorch-{'fsdp' if args.fsdp else 'ddp'}-{ranks}"
    who += (f"-{args.fp8}" if args.fp8 else "") + ("-blocks" if args.compile_blocks else "")
    for s in chosen:  # first steps count from process start: to compare them, start one process per shape
        result = measure(s, args.steps, args.warmup, ranks, args.fsdp, args.fp8, args.compile_blocks)
        if rank == 0:
            report(s, *result, ranks, who, args.csv)
        torch._dynamo.reset()
        torch.cuda.empty_cache()
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
