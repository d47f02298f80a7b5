#!/usr/bin/env python3
"""Compares low-rank adapters with Hugging Face's PEFT, in float32 on a CPU.

against_peft.py RINGMASTER LOGITS: the program, and the one built from logits.cpp.

1. A run trains adapters (model.lora). Its export must load in PEFT on top of the exported base model, and PEFT must give
   the logits of the run.
2. The export with --merge must give the same logits in transformers.
3. An adapter that PEFT saves, with a different rank for some layers and with rsLoRA, must give PEFT's greedy text in
   `ringmaster generate --adapter`.

Exits with 77, which CTest calls skipped, if torch, transformers or peft is missing.
"""

import json
import os
import subprocess
import sys
import tempfile
import warnings

try:
    import numpy as np
    import peft
    import torch
    import transformers
except ImportError as e:
    print("skipped:", e)
    sys.exit(77)

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

TOLERANCE = 1e-5  # of the largest logit
MODEL = ["model.context=64", "model.layers=2", "model.width=32", "model.heads=4", "model.kv_heads=2",
         "model.biases=none", "train.batch_size=4", "optimizer.lr=0.01", "run.device=cpu", "run.threads=2",
         "checkpoint.interval=1000", "schedule.warmup_steps=2"]
FAMILIES = {"llama": [], "qwen2": ["model.biases=qkv"], "qwen3": ["model.qk_norm=true", "model.head_dim=16"]}
LORA = "model.lora={rank: 4, alpha: 12, targets: [wq, wv, wo, gate, down]}"


def main(ring, logits_program):
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        def path(*names):
            return os.path.join(folder, *names)

        def run(*command):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
            return done.stdout

        with open(path("text.txt"), "w") as text:
            for i in range(600):
                text.write(f"line {i} of a text that repeats itself {i % 7}\n")
        run(ring, "data", "prepare", "--input", "text.txt", "--tokenizer", "bytes", "--output", "a.h5",
            "--validation-fraction", "0.1")
        ids = np.frombuffer(b"line 12 of a text that repeats", np.uint8).astype(np.int32)
        ids.tofile(path("ids"))
        tokens = torch.tensor(ids[None].astype(np.int64))

        def ours(name):
            run(logits_program, "whole", name, "ids", "logits")
            return np.fromfile(path("logits"), np.float32).reshape(len(ids), -1)

        def theirs(model):
            with torch.no_grad():
                return model(tokens).logits[0].numpy()

        def check(what, want, got):
            error = np.abs(want - got).max() / np.abs(want).max()
            good = bool(error <= TOLERANCE)
            print(f"{what}: largest difference {error:.1e}" + ("" if good else ", WRONG"))
            return not good

        for family, settings in FAMILIES.items():
            base, tuned = f"{family}-base", f"{family}-tuned"
            with open(path("base.yaml"), "w") as file:
                file.write("data: {path: a.h5}\n")
            run(ring, "train", "base.yaml", f"run.directory={base}", "train.steps=40", *MODEL, *settings)
            run(ring, "train", "base.yaml", f"run.directory={tuned}", f"run.init_from={base}", "train.steps=20", LORA,
                *MODEL, *settings)
            run(ring, "export", base, "--output", f"{base}-hf")
            run(ring, "export", tuned, "--output", f"{tuned}-peft")
            run(ring, "export", tuned, "--output", f"{tuned}-hf", "--merge")
            want = ours(tuned)
            if np.abs(want - ours(base)).max() < 0.1 * np.abs(want).max():
                sys.exit(f"{family}: the adapters change too little to be tested")

            def plain():
                return transformers.AutoModelForCausalLM.from_pretrained(path(f"{base}-hf"), dtype=torch.float32)

            adapted = peft.PeftModel.from_pretrained(plain(), path(f"{tuned}-peft")).eval()
            wrong += check(f"{family}: PEFT", want, theirs(adapted))
            merged = transformers.AutoModelForCausalLM.from_pretrained(path(f"{tuned}-hf"), dtype=torch.float32)
            wrong += check(f"{family}: merged", want, theirs(merged.eval()))
            wrong += generates_the_same(family, plain(), base, path, lambda *a: run(ring, *a), tokens)
    sys.exit(1 if wrong else 0)


def generates_the_same(family, model, base, path, ring, tokens):
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "v_proj", "up_proj"], use_rslora=True,
                             rank_pattern={"up_proj": 2}, task_type="CAUSAL_LM")
    torch.manual_seed(5)
    made = peft.get_peft_model(model, config).eval()
    with torch.no_grad():
        for name, value in made.named_parameters():
            if "lora_" in name:
                value.normal_(std=0.3)
    made.save_pretrained(path(f"{family}-made"))
    with torch.no_grad():
        text = made.generate(tokens, max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
    want = bytes(i for i in text[0, tokens.shape[1]:].tolist() if i < 256)
    prompt = bytes(tokens[0].tolist()).decode()
    lines = ring("generate", base, "--adapter", f"{family}-made", "--prompt", prompt, "--temperature", "0",
                 "--max-tokens", "20", "--ignore-end", "--json")
    got = json.loads(lines)["text"]
    good = got == want.decode(errors="replace")
    print(f"{family}: greedy text with an adapter of PEFT {'equal' if good else f'WRONG: {got!r}, not {want!r}'}")
    return not good


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]))
