#!/usr/bin/env python3
"""Muon beside AdamW: nanoGPT's GPU configuration without dropout on a large text, each over the same rates with one
seed, then each with its best rate and more seeds. Needs a GPU and no packages.

    bench/optimizers.py RINGMASTER TEXT.h5 [--rates 5e-4,1e-3,2e-3,4e-3] [--seeds 3] [--steps 5000] [--output DIRECTORY]
    bench/optimizers.py --draw losses.json optimizers.svg

DIRECTORY gets the runs and losses.json: of each run the kind, rate, seed and validation losses by step.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from plot_run import GAP, LEFT, RIGHT, TOP, WIDTH, Panel  # noqa: E402

KINDS = {"adamw": "#7aa5d8", "muon": "#c0392b"}
HEIGHT = 300


def train(args, kind, rate, seed):
    run = args.output / f"{kind}-{rate:g}-{seed}"
    subprocess.run([args.binary, "train", str(ROOT / "configs/nanogpt_gpu.yaml"), f"run.directory={run}",
                    f"run.seed={seed}", f"data.path={args.text}", f"train.steps={args.steps}",
                    f"train.eval_interval={args.steps // 10}", "model.dropout=0", "model.attention_dropout=0",
                    f"optimizer.kind={kind}", f"optimizer.lr={rate}"], check=True, stdout=subprocess.DEVNULL)
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    losses = [(r["step"], r["loss"]) for r in records if r["group"] == "validation"]
    print(f"{kind:6} lr {rate:<6g} seed {seed}: {losses[-1][1]:.4f}", flush=True)
    return {"kind": kind, "lr": rate, "seed": seed, "losses": losses}


def measure(args):
    args.output.mkdir(parents=True, exist_ok=True)
    runs = [train(args, kind, rate, 1) for rate in args.rates for kind in KINDS]
    for kind in KINDS:
        best = min((r for r in runs if r["kind"] == kind), key=lambda r: r["losses"][-1][1])["lr"]
        runs += [train(args, kind, best, seed) for seed in range(2, args.seeds + 1)]
        last = [r["losses"][-1][1] for r in runs if (r["kind"], r["lr"]) == (kind, best)]
        print(f"{kind}: lr {best:g}, mean of {len(last)} seeds {statistics.mean(last):.4f}")
    (args.output / "losses.json").write_text(json.dumps(runs))


def mean_curves(runs):
    """For each kind and rate: the mean over seeds of the losses at each step."""
    curves = {}
    for r in runs:
        curves.setdefault((r["kind"], r["lr"]), []).append(r["losses"])
    return {key: [(points[0][0], statistics.mean(loss for _, loss in points)) for points in zip(*same)]
            for key, same in curves.items()}


def draw(runs):
    curves = mean_curves(runs)
    best = {kind: min((c for c in curves if c[0] == kind), key=lambda c: curves[c][-1][1]) for kind in KINDS}
    losses = [loss for points in curves.values() for _, loss in points]
    steps = max(points[-1][0] for points in curves.values())
    panel = Panel(TOP, HEIGHT, steps, min(losses) - 0.02, min(max(losses), 2 * min(losses)))
    lines = []
    for key in sorted(curves, key=lambda c: c in best.values()):
        lines += panel.curve(curves[key], KINDS[key[0]], 2.2 if key in best.values() else 0.7)
    for kind, key in best.items():
        lines += panel.dots(curves[key][-1:], KINDS[kind])
    bottom = TOP + HEIGHT + GAP
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom}" font-family="sans-serif" '
        'font-size="12" fill="#333">', f'<rect width="{WIDTH}" height="{bottom}" rx="6" fill="#fff"/>',
        *panel.frame("validation loss", lambda v: f"{v:g}"), *lines,
        *(f'<text x="{LEFT + 300 * i}" y="24" fill="{KINDS[kind]}">{kind}, thick: lr {key[1]:g}</text>'
          for i, (kind, key) in enumerate(best.items())),
        f'<text x="{LEFT + (WIDTH - LEFT - RIGHT) / 2}" y="{bottom - 6}" text-anchor="middle">step</text>', "</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", nargs="?")
    parser.add_argument("text", nargs="?", help="corpus written by data prepare")
    parser.add_argument("--rates", type=lambda text: [float(x) for x in text.split(",")],
                        default=[5e-4, 1e-3, 2e-3, 4e-3])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("runs/optimizers"))
    parser.add_argument("--draw", nargs=2, type=pathlib.Path, metavar=("LOSSES", "SVG"))
    args = parser.parse_args()
    if args.draw:
        args.draw[1].write_text(draw(json.loads(args.draw[0].read_text())))
    elif args.text:
        measure(args)
    else:
        parser.error("give RINGMASTER and TEXT.h5, or --draw")


if __name__ == "__main__":
    main()
