#!/usr/bin/env python3
"""Starts fresh runs of the same settings and compares their losses and gradient norms bit for bit.

    tests/recovery/repeats.py BINARY --text FILE [--device cuda] [--runs 20] [--at-once 1] [--steps 40] [--tuning auto]
                              [--only NAME,...] [--digests FILE] [--set KEY=VALUE...]

Starts each kind of run (kinds of attention, CUDA graphs on and off, packed documents, dropout) --runs times, --at-once
of them in parallel, each in its own folder. --digests writes one line per kind, a hash of all losses and norms; if the
file exists, also compares with its lines, so that two machines can be compared. Exits with 1 if anything differs.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import subprocess
import sys
import tempfile

SMALL = ["model.layers=4", "model.width=512", "model.heads=8", "model.kv_heads=4", "model.context=1024", "train.batch_size=8",
         "train.micro_batch=4", "train.eval_interval=0", "train.log_interval=1", "schedule.warmup_steps=10",
         "checkpoint.interval=0", "optimizer.lr=1e-3"]
CONTENT = "model.attention={kind: block_sparse, block: 64, rules: [{pattern: content, local: 2, first: 1, keep: 4}]}"
BLOCKS = "model.attention={kind: block_sparse, block: 64, rules: [{pattern: %s}], %s}"
LEARNED = BLOCKS % ("learned, keep: 4, first: 1, local: 2", "index_heads: 2, index_distances: 8, index_warmup_steps: 4")
IMPORTANCE = BLOCKS % ("importance, keep: 5, first: 1, interval: 5, explore: 1", "heads: [0]")
KINDS = {
    "dense": [],
    "dense-graph": ["train.cuda_graph=on"],
    "window": ["model.attention={kind: window, window: 256}"],
    "content": [CONTENT],
    "content-packed": [CONTENT, "data.packing.documents=true"],
    "learned": [LEARNED],
    "learned-packed": [LEARNED, "data.packing.documents=true"],
    "importance": [IMPORTANCE],
    "packed": ["data.packing.documents=true"],
    "packed-graph": ["data.packing.documents=true", "train.cuda_graph=on"],
    "dropout": ["model.dropout=0.1", "model.attention_dropout=0.1"],
    "any-order": ["run.deterministic=false"],
}
NOT_PROMISED = {"any-order"}  # may differ; shows that the comparison detects differences


class Folder:
    def __init__(self, arguments):
        self.arguments = arguments
        self.path = tempfile.mkdtemp(prefix="ring_repeats_")
        self.binary = os.path.abspath(arguments.binary)
        with open(os.path.join(self.path, "t.yaml"), "w") as f:
            f.write("run: {name: t}\n")
        self.run("data", "prepare", "--input", os.path.abspath(arguments.text), "--tokenizer", "bytes",
                 "--document", "blank-line", "--validation-fraction", "0.05", "--output", "corpus.h5")

    def run(self, *words):
        done = subprocess.run([self.binary, *words], cwd=self.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {done.stdout.decode()[-2000:]}")

    def digest(self, kind, number):
        """Makes one fresh run. Returns a hash of all its losses and norms, and its last loss."""
        name = f"{kind}-{number}"
        self.run("train", "t.yaml", f"run.directory={self.path}/{name}", f"run.device={self.arguments.device}",
                 f"run.tuning={self.arguments.tuning}", "data.path=corpus.h5", f"train.steps={self.arguments.steps}",
                 *SMALL, *KINDS[kind], *self.arguments.settings)
        with open(f"{self.path}/{name}/metrics.jsonl") as f:
            records = [json.loads(line) for line in f]
        steps = [(r["step"], r["loss"], r["grad_norm"]) for r in records if r["group"] == "train"]
        if len(steps) != self.arguments.steps:
            raise RuntimeError(f"{name}: {len(steps)} steps in metrics.jsonl, expected {self.arguments.steps}")
        return hashlib.sha256(repr(steps).encode()).hexdigest()[:16], steps[-1][1]


def arguments_of(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--text", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--tuning", default="auto")
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--digests")
    parser.add_argument("--set", dest="settings", nargs="*", default=[], help="additional settings for all kinds")
    return parser.parse_args(words)


def main():
    arguments = arguments_of(sys.argv[1:])
    folder, wrong, lines = Folder(arguments), [], {}
    before = {}
    if arguments.digests and os.path.exists(arguments.digests):
        with open(arguments.digests) as f:
            before = dict(line.split() for line in f)
    for kind in arguments.only.split(","):
        with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool:
            results = list(pool.map(lambda number: folder.digest(kind, number), range(arguments.runs)))
        digests = [digest for digest, _ in results]
        lines[kind] = digests[0]
        differs_from_file = before.get(kind, digests[0]) != digests[0]
        if kind not in NOT_PROMISED and (len(set(digests)) > 1 or differs_from_file):
            wrong.append(kind)
        print(f"{kind}: {len(digests)} runs, {len(set(digests))} distinct, {digests[0]}, last loss {results[0][1]!r}"
              f"{', differs from ' + arguments.digests if differs_from_file else ''}", flush=True)
    if arguments.digests and not before:
        with open(arguments.digests, "w") as f:
            f.writelines(f"{kind} {digest}\n" for kind, digest in lines.items())
    print("all runs repeat" if not wrong else "runs that do not repeat: " + ", ".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
