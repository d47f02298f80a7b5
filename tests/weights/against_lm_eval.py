#!/usr/bin/env python3
"""Compares tasks with lm-evaluation-harness, in float32 on a CPU.

against_lm_eval.py RINGMASTER: the program.

A small random Llama with a byte-level BPE tokenizer is made with transformers and imported. Questions of each format,
invented here, are evaluated by lm_eval, whose own task files (hellaswag, arc_easy, mmlu, lambada_openai) are pointed at
our files, and by `ringmaster eval --task`. All metrics must agree.

Exits with 77, which CTest calls skipped, if lm_eval, torch, transformers or tokenizers is missing.
"""

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
warnings.filterwarnings("ignore")

try:
    import lm_eval
    import torch
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
except ImportError as e:
    print("skipped:", e)
    sys.exit(77)

torch.set_num_threads(1)  # in so small a model, more threads only wait for each other
QUESTIONS = 120
random.seed(7)
WORDS = ("the a roof water woman man horse ball river house light stone blue quick often never walks takes opens "
         "throws builds sees café naïve Straße 水 snow, then slowly under over between").split()


def words(least, most):
    return " ".join(random.choice(WORDS) for _ in range(random.randint(least, most)))


def hellaswag():
    endings = [words(2, 12) + random.choice([".", " [step] .", "  twice."]) for _ in range(4)]
    return {"activity_label": words(1, 3), "ctx_a": words(5, 20) + random.choice(["", " [header] One [title] Two"]),
            "ctx_b": random.choice(["", words(1, 4)]), "endings": endings, "label": str(random.randrange(4))}


def arc():
    n = random.choice([3, 4, 5])
    labels = ["A", "B", "C", "D", "E"][:n] if random.random() < 0.7 else ["1", "2", "3", "4", "5"][:n]
    return {"id": "x", "question": words(4, 15) + "?", "choices": {"text": [words(1, 6) for _ in labels],
                                                                  "label": labels}, "answerKey": random.choice(labels)}


def mmlu():
    return {"question": " " + words(4, 15) + "? ", "subject": "high_school_stones",
            "choices": [words(1, 5) for _ in range(4)], "answer": random.randrange(4)}


def lambada():
    return {"text": words(10, 40) + " " + random.choice(WORDS)}


def greedy_lambada(model, tokenizer):
    """Returns a text whose last word is the model's most likely token."""
    while True:
        context = words(10, 40)
        ids = tokenizer(context)["input_ids"]
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        text = tokenizer.decode(ids)
        word = text[len(context):]
        if re.fullmatch(r" \w+", word) and tokenizer(text)["input_ids"] == ids:
            return {"text": text}


# Our name of the format, the harness's task file below its folder, and the split and metrics there.
TASKS = [(hellaswag, "hellaswag/hellaswag.yaml", "validation", ["acc", "acc_norm"]),
         (arc, "arc/arc_easy.yaml", "test", ["acc", "acc_norm"]),
         (mmlu, "mmlu/default/_default_template_yaml", "test", ["acc"]),
         (lambada, "lambada/lambada_openai.yaml", "test", ["acc", "perplexity"])]


def write_task(folder, make, base, split, model):
    name = make.__name__
    data = os.path.join(folder, name + ".jsonl")
    records = [make() for _ in range(QUESTIONS)]
    if make is lambada:  # otherwise a random model is never right
        records[::3] = [greedy_lambada(*model) for _ in records[::3]]
    with open(data, "w", encoding="utf-8") as out:
        for record in records:
            out.write(json.dumps(record, ensure_ascii=False) + "\n")
    files = {s: data for s in {split, "train", "validation", "test", "dev"}}
    more = 'description: "The following are multiple choice questions (with answers) about high school stones.\\n\\n"\n'
    with open(os.path.join(folder, f"our_{name}.yaml"), "w") as out:
        out.write(f"include: {os.path.join(os.path.dirname(lm_eval.__file__), 'tasks', base)}\n"
                  f"task: our_{name}\ntag: null\ndataset_path: json\ndataset_name: null\n"
                  f"dataset_kwargs: {json.dumps({'data_files': files})}\n" + (more if name == "mmlu" else ""))


def make_model(folder):
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([words(20, 60) for _ in range(300)], vocab_size=420,
                                  special_tokens=["<|endoftext|>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, eos_token="<|endoftext|>",
                                   bos_token="<|endoftext|>")
    fast.save_pretrained(folder)
    torch.manual_seed(3)
    config = LlamaConfig(vocab_size=tokenizer.get_vocab_size(), hidden_size=64, intermediate_size=96,
                         num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                         max_position_embeddings=256, initializer_range=0.15)
    model = LlamaForCausalLM(config).to(torch.float32)
    model.save_pretrained(folder)
    return model, fast


def theirs(folder, model):
    lm = HFLM(pretrained=model, dtype="float32", device="cpu", batch_size=8, max_length=256)
    found = lm_eval.simple_evaluate(model=lm, tasks=[f"our_{make.__name__}" for make, *_ in TASKS],
                                    task_manager=TaskManager(include_path=folder, include_defaults=False),
                                    num_fewshot=0, bootstrap_iters=10, verbosity="ERROR")
    return {name[len("our_"):]: values for name, values in found["results"].items()}


def ours(ringmaster, folder, model):
    run, out = os.path.join(folder, "run"), os.path.join(folder, "ours.json")
    subprocess.run([ringmaster, "import", model, "--output", run], check=True, capture_output=True)
    specs = [f"{make.__name__}={os.path.join(folder, make.__name__ + '.jsonl')}" for make, *_ in TASKS]
    done = subprocess.run([ringmaster, "eval", run, "--device", "cpu", "--output", out, "--task", *specs], check=True,
                          capture_output=True, text=True)
    print(done.stdout)
    with open(out) as file:
        return json.load(file)["tasks"]


def main(ringmaster):
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "model")
        made = make_model(model)
        for make, base, split, _ in TASKS:
            write_task(folder, make, base, split, made)
        our, their = ours(ringmaster, folder, model), theirs(folder, model)
        print(f"lm_eval {lm_eval.__version__}, {QUESTIONS} questions each")
        print(f"{'task':<10} {'metric':<16} {'lm_eval':>14} {'ringmaster':>14}")
        for make, _, _, metrics in TASKS:
            name = make.__name__
            for metric in metrics + ["acc_stderr"]:
                key = metric.replace("_stderr", "_stderr,none") if "stderr" in metric else metric + ",none"
                a, b = their[name][key], our[name][metric]
                good = abs(a - b) <= 1e-5 * abs(a) if metric == "perplexity" else abs(a - b) < 1e-9
                bad += not good
                print(f"{name:<10} {metric:<16} {a:>14.6f} {b:>14.6f}{'' if good else '  DIFFERENT'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
