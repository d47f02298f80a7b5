#!/usr/bin/env python3
"""Compares training on pairs of answers with TRL's DPOTrainer, in float32 on a CPU.

against_trl.py RINGMASTER: the program.

A small model is trained on pairs with each loss. Loss and rewards of its validation must equal those of DPOTrainer for
the exported model, with the exported initial model as reference, on the same pairs.

Exits with 77, which CTest calls skipped, if torch, transformers, datasets or trl is missing.
"""

import json
import os
import subprocess
import sys
import tempfile
import warnings

try:
    import datasets
    import torch
    import transformers
    import trl
except ImportError as e:
    print("skipped:", e)
    sys.exit(77)

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
datasets.disable_progress_bars()

TOLERANCE = 1e-5  # absolute for losses below 1, else relative
MODEL = ["model.context=128", "model.layers=2", "model.width=32", "model.heads=4", "model.kv_heads=2",
         "model.biases=none", "optimizer.lr=0.003", "run.device=cpu", "run.threads=2", "checkpoint.interval=1000",
         "schedule.warmup_steps=2", "train.batch_size=4"]
PAIRS = ["data={path: pairs.h5, packing: {documents: true, best_fit: 64}}", "run.init_from=runs/base",
         "train.steps=20", "train.eval_interval=20"]
# Our settings, and DPOTrainer's.
LOSSES = {"dpo": ({"loss": "dpo", "beta": 0.3}, {"loss_type": "sigmoid", "beta": 0.3}),
          "normalized": ({"loss": "dpo", "beta": 2, "length_normalized": True},
                         {"loss_type": "sigmoid_norm", "beta": 2}),
          "ipo": ({"loss": "ipo", "beta": 0.2}, {"loss_type": "ipo", "beta": 0.2}),
          "hinge": ({"loss": "hinge", "beta": 0.1}, {"loss_type": "hinge", "beta": 0.1})}
METRICS = {"loss": "eval_loss", "rewards/chosen": "eval_rewards/chosen", "rewards/rejected": "eval_rewards/rejected",
           "rewards/accuracies": "eval_rewards/accuracies"}


def pairs(first, count):
    return [{"prompt": f"{i % 17}+{i % 5}=", "chosen": f"{i % 17 + i % 5}.", "rejected": f"about {i % 9}"}
            for i in range(first, first + count)]


def evaluate(model, reference, tokenizer, records, settings, folder):
    """Returns the metrics of DPOTrainer.evaluate(), with all records in one batch."""
    arguments = trl.DPOConfig(output_dir=folder, per_device_eval_batch_size=len(records), report_to=[], use_cpu=True,
                              bf16=False, fp16=False, disable_tqdm=True, **settings)
    data = datasets.Dataset.from_list(records)
    trainer = trl.DPOTrainer(model=model, ref_model=reference, args=arguments, train_dataset=data, eval_dataset=data,
                             processing_class=tokenizer)
    return trainer.evaluate()


def main(ring):
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        def path(*names):
            return os.path.join(folder, *names)

        def run(*command):
            done = subprocess.run([ring, *command], cwd=folder, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")

        def load(name):
            return transformers.AutoModelForCausalLM.from_pretrained(path(name), dtype=torch.float32)

        train, validation = pairs(0, 120), pairs(120, 24)
        for name, records in {"train": train, "validation": validation}.items():
            with open(path(name + ".jsonl"), "w") as file:
                file.writelines(json.dumps(r) + "\n" for r in records)
        with open(path("text.txt"), "w") as file:
            file.writelines(r["prompt"] + r[a] + "\n" for r in train for a in ("chosen", "rejected"))
        run("tokenizer", "train", "--input", "text.txt", "--kind", "byte-bpe", "--vocab-size", "300",
            "--output", "t.json")
        run("data", "prepare", "--input", "text.txt", "--tokenizer", "t.json", "--output", "text.h5",
            "--validation-fraction", "0.1")
        run("data", "prepare", "--input", "train.jsonl", "--validation-input", "validation.jsonl", "--preferences",
            "text", "--tokenizer", "t.json", "--output", "pairs.h5")
        open(path("base.yaml"), "w").close()
        run("train", "base.yaml", "run.name=base", "data.path=text.h5", "train.steps=20", *MODEL)
        run("export", "runs/base", "--output", "base")
        tokenizer = transformers.AutoTokenizer.from_pretrained(path("base"))
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        for name, (ours, theirs) in LOSSES.items():
            run("train", "base.yaml", f"run.name={name}", f"preference={json.dumps(ours)}", *MODEL, *PAIRS)
            run("export", f"runs/{name}", "--output", name)
            with open(path("runs", name, "metrics.jsonl")) as file:
                got = [r for r in map(json.loads, file) if r["group"] == "validation"][-1]
            want = evaluate(load(name), load("base"), tokenizer, validation, theirs, path("trl"))
            if abs(got["rewards/chosen"]) < 1e-3:
                sys.exit(f"{name}: the model has not changed")
            for mine, other in METRICS.items():
                error = abs(got[mine] - want[other]) / max(1, abs(want[other]))
                good = bool(error <= TOLERANCE)
                wrong += not good
                print(f"{name}: {mine} {got[mine]:.6f}, TRL {want[other]:.6f}" + ("" if good else ", WRONG"))
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1])))
