#!/usr/bin/env python3
"""The peer of `ringmaster bench context`: PyTorch's context parallel attention over one causal sequence.

    torchrun --nproc-per-node 4 bench/peers/torch_context.py [--lengths 65536,131072] [--heads 16] [--head-dim 128]
                                                             [--rotate allgather|alltoall|both] [--backends cudnn,flash]

torch.distributed.tensor.experimental.context_parallel around scaled_dot_product_attention in bf16, whose keys reach the other ranks
all at once (allgather) or from rank to rank (alltoall); the sequence is cut as PyTorch balances it. Times lie between two CUDA events
around --iterations calls, after a warm-up and a barrier; the slowest rank counts. FLOPs of kept pairs: 4 x heads x head_dim for each
in the forward, 2.5 times that in the backward, shared evenly among the GPUs. Needs PyTorch 2.7 or later.
"""
import argparse
import os

import torch
from torch import distributed
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
ROTATIONS = ("allgather", "alltoall")


def integers(text):
    return [int(part) for part in text.split(",")]


def names(text):
    chosen = text.split(",")
    for name in chosen:
        if name not in BACKENDS:
            raise argparse.ArgumentTypeError(f"{name} is not one of {', '.join(BACKENDS)}")
    return chosen


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--lengths", type=integers, default=[65536, 131072, 262144], help="tokens of the whole sequence, with commas")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--rotate", choices=(*ROTATIONS, "both"), default="both")
    parser.add_argument("--backends", type=names, default=list(BACKENDS), help=", ".join(BACKENDS))
    parser.add_argument("--iterations", type=int, default=10, help="calls between the two events")
    parser.add_argument("--warmup", type=int, default=3)
    args = parser.parse_args()
    if args.iterations < 1 or args.warmup < 1:
        parser.error("--iterations and --warmup must be at least 1")
    if min(args.lengths) < 1 or args.heads < 1 or args.head_dim < 1:
        parser.error("--lengths, --heads and --head-dim must be at least 1")
    return args


def milliseconds(work, args):
    """Of one call, on the slowest rank."""
    for _ in range(args.warmup):
        work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    distributed.barrier()
    begin.record()
    for _ in range(args.iterations):
        work()
    end.record()
    end.synchronize()
    slowest = torch.tensor(begin.elapsed_time(end) / args.iterations, device="cuda")
    distributed.all_reduce(slowest, op=distributed.ReduceOp.MAX)
    return slowest.item()


def measure(mesh, length, rotate, backend, args):
    """Milliseconds of the forward, of forward and backward, and the most memory that this rank held meanwhile, in GiB."""
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method

    set_rotate_method(rotate)
    torch.manual_seed(0)  # all ranks have the whole sequence until it is sharded
    whole = [torch.randn(1, args.heads, length, args.head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    with context_parallel(mesh, buffers=whole, buffer_seq_dims=[2] * 4, no_restore_buffers=set(whole)):
        q, k, v, gradient = whole  # now this rank's shards
        inputs = [t.requires_grad_() for t in (q, k, v)]

        def attend():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        with sdpa_kernel([backend]):
            with torch.no_grad():
                forward = milliseconds(attend, args)
            both = milliseconds(lambda: torch.autograd.grad(attend(), inputs, gradient), args)
    return forward, both, torch.cuda.max_memory_allocated() / 2**30


def report(length, rotate, name, ranks, result, args):
    forward, both, peak = result
    flops = 4 * args.heads * args.head_dim * (length * (length + 1) / 2) / ranks
    rates = flops / forward / 1e9, 3.5 * flops / both / 1e9  # TFLOP/s of each GPU
    print(length, rotate, name, f"{forward:.3f},{rates[0]:.1f},{both:.3f},{rates[1]:.1f},{peak:.2f}", sep=",", flush=True)


def main():
    args = arguments()
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU")
    if "WORLD_SIZE" not in os.environ:
        raise SystemExit("start several processes: torchrun --nproc-per-node N bench/peers/torch_context.py")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    mesh = distributed.device_mesh.init_device_mesh("cuda", (ranks,), mesh_dim_names=("cp",))
    rotations = ROTATIONS if args.rotate == "both" else (args.rotate,)
    if rank == 0:
        print(f"# {ranks} GPUs, {args.heads} heads of {args.head_dim}, PyTorch {torch.__version__}")
        print("tokens,rotate,backend,forward_ms,forward_tflops,both_ms,both_tflops,peak_gib")
    for length in args.lengths:
        for rotate in rotations:
            for name in args.backends:
                try:
                    result = measure(mesh, length, rotate, BACKENDS[name], args)
                except RuntimeError as error:  # this kernel is not available, or memory is too short
                    print(f"# rank {rank}: {length}, {rotate}, {name}: {str(error).splitlines()[0][:100]}", flush=True)
                    torch.cuda.empty_cache()
                    continue
                if rank == 0:
                    report(length, rotate, name, ranks, result, args)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
