#!/usr/bin/env python3
"""Compares imported and exported weights with Hugging Face's transformers, in float32 on a CPU.

against_transformers.py RINGMASTER LOGITS: the program, and the one built from logits.cpp.

1. Tiny models that transformers makes, of each family and with each setting of its config.json, are imported. Our
   logits, in a whole pass and token by token through the cache, our loss and all our gradients must equal theirs.
2. The models are exported again, and transformers must load every tensor bit for bit and give the same logits.
3. Runs of `ringmaster train` are exported, and transformers must give our logits. With a SentencePiece tokenizer and
   with a tokenizer.json, it must give our tokens.

Exits with 77, which CTest calls skipped, if torch, transformers or safetensors is missing.
"""

import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings

try:
    import numpy as np
    import torch
    import transformers
    from transformers import (AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer, Gemma2Config,
                              Gemma3TextConfig, GPT2Config, LlamaConfig, MistralConfig, Olmo2Config, Olmo3Config,
                              OlmoHybridConfig, Qwen2Config, Qwen3_5Config, Qwen3_5TextConfig, Qwen3Config)
    from safetensors.numpy import load_file, save_file
except ImportError as e:
    print("skipped:", e)
    sys.exit(77)

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

TOLERANCE = 1e-4  # of the largest logit, and of the largest gradient of each tensor
TOKENS = 48

SIZES = dict(vocab_size=131, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64)


def rope(**parameters):
    """Returns the parameters in the form that this version of transformers accepts."""
    if int(transformers.__version__.split(".")[0]) >= 5:
        return dict(rope_parameters=parameters)
    theta = parameters.pop("rope_theta")
    return dict(rope_theta=theta, rope_scaling=parameters if parameters["rope_type"] != "default" else None)


LLAMA3 = rope(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)

GEMMA_ENDS = dict(eos_token_id=None, bos_token_id=None, pad_token_id=None)


def layer_ropes(full, sliding):
    """Returns the RoPE parameters of dense layers and of those with windows."""
    if int(transformers.__version__.split(".")[0]) >= 5:
        return dict(rope_parameters=dict(full_attention=full, sliding_attention=sliding))
    return dict(**rope(**full), rope_local_base_freq=sliding["rope_theta"])


DELTA_NETS = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=24,
                  **GEMMA_ENDS)
# Positions of text are the same in all three sections of mrope_section.
PARTIAL = dict(partial_rotary_factor=0.25, mrope_section=[2, 1, 1], mrope_interleaved=True)

MODELS = {
    "llama": LlamaConfig(**SIZES, rms_norm_eps=1e-5),
    "llama-3": LlamaConfig(**SIZES, **LLAMA3, tie_word_embeddings=True),
    "llama-linear": LlamaConfig(**SIZES, **rope(rope_type="linear", rope_theta=1e4, factor=4.0)),
    "llama-yarn": LlamaConfig(**SIZES, **rope(rope_type="yarn", rope_theta=1e4, factor=4.0,
                                              original_max_position_embeddings=16)),
    "qwen3-yarn": Qwen3Config(**SIZES, head_dim=32, **rope(
        rope_type="yarn", rope_theta=1e6, factor=2.0, original_max_position_embeddings=32, beta_fast=16.0,
        beta_slow=2.0, attention_factor=0.8)),
    "qwen2-yarn": Qwen2Config(**SIZES, **rope(
        rope_type="yarn", rope_theta=1e5, factor=4.0, original_max_position_embeddings=16, mscale=0.7,
        mscale_all_dim=0.3)),
    "llama-dynamic": LlamaConfig(**{**SIZES, "max_position_embeddings": 32},
                                 **rope(rope_type="dynamic", rope_theta=1e4, factor=2.0)),
    "qwen3-dynamic": Qwen3Config(**{**SIZES, "max_position_embeddings": 20}, head_dim=32,
                                 **rope(rope_type="dynamic", rope_theta=1e6, factor=4.0)),
    "llama-biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama-head-dim": LlamaConfig(**SIZES, head_dim=24),
    "smollm2": LlamaConfig(**{**SIZES, "hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3},
                           **rope(rope_type="default", rope_theta=1e5), tie_word_embeddings=True),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "mistral-window": MistralConfig(**SIZES, sliding_window=7, head_dim=16),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen2-windows": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "qwen3": Qwen3Config(**SIZES, head_dim=32),
    "qwen3-windows": Qwen3Config(**SIZES, head_dim=16, use_sliding_window=True, sliding_window=5,
                                 layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "olmo2": Olmo2Config(**SIZES, eos_token_id=None, pad_token_id=None),
    "olmo2-llama-3": Olmo2Config(**{**SIZES, "num_key_value_heads": 4}, **LLAMA3, tie_word_embeddings=True,
                                 eos_token_id=None, pad_token_id=None),
    "olmo3": Olmo3Config(**{**SIZES, "num_hidden_layers": 5}, **layer_ropes(
        dict(rope_type="yarn", rope_theta=5e5, factor=4.0, original_max_position_embeddings=16),
        dict(rope_type="default", rope_theta=5e5)), sliding_window=7, eos_token_id=None, pad_token_id=None),
    "olmo3-dense": Olmo3Config(**SIZES, layer_types=["full_attention"] * 3, eos_token_id=None, pad_token_id=None),
    "gemma2": Gemma2Config(**SIZES, head_dim=24, query_pre_attn_scalar=20, sliding_window=9, **GEMMA_ENDS,
                           attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    "gemma2-uncapped": Gemma2Config(**SIZES, head_dim=16, query_pre_attn_scalar=16, sliding_window=64,
                                    attn_logit_softcapping=None, final_logit_softcapping=None,
                                    tie_word_embeddings=False, **GEMMA_ENDS),
    "gemma3": Gemma3TextConfig(**{**SIZES, "num_hidden_layers": 7}, head_dim=16, query_pre_attn_scalar=24,
                               sliding_window=8, **GEMMA_ENDS),
    "gemma3-linear": Gemma3TextConfig(**SIZES, head_dim=32, query_pre_attn_scalar=32, sliding_window=11, **GEMMA_ENDS,
                                      layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                      **layer_ropes(dict(rope_type="linear", rope_theta=1e5, factor=8.0),
                                                    dict(rope_type="default", rope_theta=300.0))),
    "qwen3.5": Qwen3_5TextConfig(**{**SIZES, "num_hidden_layers": 5}, head_dim=32, **DELTA_NETS,
                                 **rope(rope_type="default", rope_theta=1e7, **PARTIAL), tie_word_embeddings=True),
    "qwen3.5-yarn": Qwen3_5TextConfig(**SIZES, head_dim=64, **{**DELTA_NETS, "linear_num_value_heads": 2},
                                      layer_types=["full_attention", "linear_attention", "full_attention"],
                                      **rope(rope_type="yarn", rope_theta=1e5, factor=4.0,
                                             original_max_position_embeddings=16, partial_rotary_factor=0.5,
                                             attention_factor=1.0)),
    "qwen3.5-attention": Qwen3_5TextConfig(**SIZES, head_dim=16, layer_types=["full_attention"] * 3, **GEMMA_ENDS),
    "olmo-hybrid": OlmoHybridConfig(**{**SIZES, "num_hidden_layers": 5}, **DELTA_NETS,
                                    **rope(rope_type="default", rope_theta=5e5)),
    "olmo-hybrid-nope": OlmoHybridConfig(**SIZES, **{**DELTA_NETS, "linear_num_value_heads": 2},
                                         layer_types=["full_attention", "linear_attention", "linear_attention"],
                                         linear_allow_neg_eigval=False, linear_conv_kernel_dim=3,
                                         **rope(rope_type="default", rope_theta=None)),
    "gpt2": GPT2Config(vocab_size=131, n_embd=64, n_layer=3, n_head=4, n_positions=64),
    "gpt2-untied": GPT2Config(vocab_size=131, n_embd=64, n_layer=2, n_head=4, n_positions=64, n_inner=80,
                              activation_function="gelu", tie_word_embeddings=False, layer_norm_epsilon=1e-3),
}

GEMMA = ["model.norm_place=sandwich", "model.norm_zero_centered=true", "model.mlp=geglu_tanh",
         "model.embedding_scale=5.656854249492381", "model.tied_embeddings=true",
         "model.attention_layers=[{layers: 0, attention: {kind: window, window: 6}}]"]

HYBRID = ["model.layers=4", "model.mixers=[gated_delta_net, gated_delta_net, gated_delta_net, attention]",
          "model.gated_delta_net={key_heads: 2, value_heads: 4, key_width: 16, value_width: 8}", "model.qk_norm=true"]

TRAINED = {
    "llama": ["model.mlp_width=96", "model.rope.theta=5000"],
    "mistral": ["model.attention={kind: window, window: 6}", "model.tied_embeddings=false"],
    "qwen2": ["model.biases=qkv"],
    "qwen3": ["model.qk_norm=true", "model.head_dim=16"],
    "olmo2": ["model.norm_place=reordered", "model.qk_norm=true", "model.qk_norm_over=projection"],
    "olmo3": ["model.norm_place=reordered", "model.qk_norm=true", "model.qk_norm_over=projection",
              "model.attention_layers=[{layers: 0, attention: {kind: window, window: 6}}]"],
    "gemma2": [*GEMMA, "model.attention_soft_cap=5", "model.logit_soft_cap=4"],
    "gemma3": [*GEMMA, "model.qk_norm=true", "model.rope.theta=1e6",
               "model.rope_layers=[{layers: 0, rope: {theta: 1e4}}]"],
    "qwen3.5": [*HYBRID, "model.attention_output_gate=true", "model.norm_zero_centered=true",
                "model.rope.partial_rotary_factor=0.5"],
    "olmo-hybrid": [*HYBRID, "model.qk_norm_over=projection", "model.norm_place=reordered_attention",
                    "model.gated_delta_net.negative_eigenvalues=true"],
    "gpt2": ["model.norm=layer", "model.positions=learned", "model.mlp=gelu_tanh", "model.biases=all",
             "model.kv_heads=4", "model.dropout=0.1"],
}
TRAINED_BASE = ["model.context=64", "model.layers=2", "model.width=32", "model.heads=4", "model.kv_heads=2",
                "train.batch_size=4", "train.steps=3", "optimizer.lr=0.01", "run.device=cpu", "run.threads=2"]


class Bench:
    """A folder, the two programs, and the errors found so far."""

    def __init__(self, binary, logits, folder):
        self.binary, self.logits_binary, self.folder = os.path.abspath(binary), os.path.abspath(logits), folder
        self.wrong, self.worst = 0, {}

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def ring(self, *arguments):
        done = subprocess.run([self.binary, *arguments], cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError("ringmaster %s: %s%s" % (" ".join(arguments), done.stdout, done.stderr))
        return done.stdout

    def compute(self, what, run, ids, output):
        ids.astype(np.int32).tofile(self.path("tokens"))
        done = subprocess.run([self.logits_binary, what, run, self.path("tokens"), output], capture_output=True,
                              text=True)
        if done.returncode:
            raise RuntimeError("%s of %s: %s" % (what, run, done.stderr))
        return done.stdout

    def our_logits(self, run, ids, how="whole"):
        self.compute(how, run, ids, self.path("logits"))
        return np.fromfile(self.path("logits"), np.float32).reshape(len(ids), -1)

    def our_gradients(self, run, ids):
        """Returns the loss, and the gradients by name."""
        loss = float(self.compute("gradients", run, ids, self.folder))
        return loss, load_file(self.path("model.safetensors"))

    def expect(self, name, what, value, allowed):
        good = value <= allowed
        self.wrong += not good
        self.worst[what] = max(self.worst.get(what, 0), value)
        print("%-24s %-34s %.2e  %s" % (name, what, value, "ok" if good else "WRONG, at most %.0e" % allowed))

    def summary(self):
        for what, value in self.worst.items():
            print("%-24s %-34s %.2e" % ("worst of all", what, value))
        print("%d wrong" % self.wrong)


def batch_of(ids):
    return torch.tensor(ids.astype(np.int64))[None]


def fresh(model):
    """Copies a model, since dynamic positions remember the longest sequence that it has seen."""
    return copy.deepcopy(model)


def their_logits(model, ids):
    with torch.no_grad():
        return fresh(model)(batch_of(ids)).logits[0].float().numpy()


def their_cached_logits(model, ids):
    """Returns the logits of the first half at once, then token by token."""
    model, parts, cache, at = fresh(model), [], None, 0
    with torch.no_grad():
        for end in range(len(ids) // 2, len(ids) + 1):
            out = model(batch_of(ids[at:end]), past_key_values=cache, use_cache=True)
            parts.append(out.logits[0].float().numpy())
            cache, at = out.past_key_values, end
    return np.concatenate(parts)


def their_gradients(model, ids):
    model = fresh(model)
    loss = model(batch_of(ids), labels=batch_of(ids)).loss
    loss.backward()
    return loss.item(), {name: p.grad.numpy() for name, p in model.named_parameters()}


def distance(ours, theirs):
    if ours.shape != theirs.shape or not np.isfinite(ours).all():
        return float("inf")
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def ids_below(vocabulary, seed):
    return np.random.default_rng(seed).integers(0, vocabulary, TOKENS)


def random_model(config, seed):
    """Makes large weights, and norms and biases other than ones and zeros, so that mixed-up tensors show."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            vector = p.dim() == 1
            noise = torch.randn_like(p) * (0.2 if vector else 0.15 if p.dim() == 2 else 0.5)
            # Slow decays: if a state held one token, the norm behind it would cancel most of the gradients of keys.
            # Norms of Qwen3.5 multiply by 1 + weight, except in gated delta nets.
            centered = config.model_type == "qwen3_5_text" and "norm" in name and "linear_attn" not in name
            mean = -2 if name.endswith("A_log") else 1 if vector and "bias" not in name and not centered else 0
            p.copy_(noise + mean)
    return model


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def differing_tensors(a, b):
    one, other = a.state_dict(), b.state_dict()
    return len(one.keys() ^ other.keys()) + sum(not torch.equal(one[k], other[k]) for k in one.keys() & other.keys())


def old_keys(folder):
    """Rewrites config.json in the form of transformers 4."""
    file = os.path.join(folder, "config.json")
    with open(file) as f:
        config = json.load(f)
    rope = config.pop("rope_parameters", None)
    if rope and "full_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    if rope:
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = {("type" if k == "rope_type" and rope[k] == "linear" else k): v
                                  for k, v in rope.items()} if rope["rope_type"] != "default" else None
    config["torch_dtype"] = config.pop("dtype", "float32")
    with open(file, "w") as f:
        json.dump(config, f)


def check_gradients(bench, name, model, run, ids):
    """Compares each tensor's gradients, relative to its own largest gradient."""
    our_loss, ours = bench.our_gradients(run, ids)
    their_loss, theirs = their_gradients(model, ids)
    bench.expect(name, "loss", abs(our_loss - their_loss) / their_loss, TOLERANCE)
    bench.expect(name, "gradients, tensors that one lacks", len(ours.keys() ^ theirs.keys()), 0)
    bench.expect(name, "gradients", max(distance(ours[k], theirs[k]) for k in ours.keys() & theirs.keys()), TOLERANCE)


def check_model(bench, name, config, seed):
    model, ids = random_model(config, seed), ids_below(config.vocab_size, seed)
    theirs = their_logits(model, ids)
    source = bench.path("hf", name)
    model.save_pretrained(source, max_shard_size="60KB" if seed % 2 else "1GB")
    bench.ring("import", source, "--output", bench.path("runs", name))
    run = bench.path("runs", name)
    bench.expect(name, "logits", distance(bench.our_logits(run, ids), theirs), TOLERANCE)
    bench.expect(name, "logits through the cache",
                 distance(bench.our_logits(run, ids, "cached"), their_cached_logits(model, ids)), TOLERANCE)
    check_gradients(bench, name, model, run, ids[:config.max_position_embeddings])
    if config.model_type not in ("qwen3_5_text", "olmo_hybrid"):  # which transformers 4 does not have
        old_keys(source)
        bench.ring("import", source, "--output", bench.path("runs", name + "-old"))
        ours = bench.our_logits(bench.path("runs", name + "-old"), ids)
        bench.expect(name, "logits, transformers 4's keys", distance(ours, theirs), TOLERANCE)
    bench.ring("export", run, "--output", bench.path("out", name), "--max-file-bytes", "100KB")
    again = load(bench.path("out", name))
    bench.expect(name, "exported, tensors that differ", differing_tensors(model, again), 0)
    bench.expect(name, "exported, their logits", distance(their_logits(again, ids), theirs), 1e-6)


def check_with_images(bench, name, seed):
    """Imports the language model of a Qwen3.5 model that also has an encoder of images and an `mtp` layer."""
    text = MODELS["qwen3.5"].to_dict()
    vision = dict(depth=1, hidden_size=32, num_heads=2, intermediate_size=48, out_hidden_size=64, patch_size=4)
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(
        Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=True), dtype=torch.float32,
        attn_implementation="eager").eval()
    ids, source = ids_below(text["vocab_size"], seed), bench.path("hf", name)
    model.save_pretrained(source)
    file = os.path.join(source, "model.safetensors")
    save_file({**load_file(file), "mtp.fc.weight": np.ones((2, 3), np.float32)}, file)
    said = bench.ring("import", source, "--output", bench.path("runs", name))
    bench.expect(name, "skipped tensors are not reported", "model.visual." not in said, 0)
    bench.expect(name, "logits", distance(bench.our_logits(bench.path("runs", name), ids), their_logits(model, ids)),
                 TOLERANCE)


def check_names_of_classes(bench, name, seed):
    """Imports an Olmo Hybrid model with the names of transformers' classes instead of those of published models."""
    config = MODELS[name]
    model, ids, source = random_model(config, seed), ids_below(config.vocab_size, seed), bench.path("hf", name + "-new")
    model.save_pretrained(source, save_original_format=False)
    names = load_file(os.path.join(source, "model.safetensors"))
    bench.expect(name, "no tensor has a new name", not any(".conv1d." in key for key in names), 0)
    bench.ring("import", source, "--output", bench.path("runs", name + "-new"))
    ours = bench.our_logits(bench.path("runs", name + "-new"), ids)
    bench.expect(name, "logits, names of classes", distance(ours, their_logits(model, ids)), TOLERANCE)


def check_greedy(bench, name, folder):
    """Compares greedy texts of a run with those of its export."""
    model, tokenizer = load(folder), AutoTokenizer.from_pretrained(folder)
    for prompt in ("line 12 of", "a text"):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            out = model.generate(ids, do_sample=False, max_new_tokens=24)
        text = tokenizer.decode(out[0], skip_special_tokens=True)
        ours = bench.ring("generate", bench.path("runs", "trained-" + name), "--prompt", prompt, "--temperature", "0",
                          "--max-tokens", "24", "--device", "cpu", "--threads", "1")
        bench.expect(name, "greedy texts that differ", text.strip() != ours.strip(), 0)


def check_trained(bench, name, settings, corpus, vocabulary):
    """Trains, exports and compares logits. Returns the folder of the export."""
    run = bench.path("runs", "trained-" + name)
    bench.ring("train", bench.path("train.yaml"), "run.directory=" + run, "data.path=" + corpus, *TRAINED_BASE,
               *settings)
    folder = bench.path("out", "trained-" + name)
    bench.ring("export", run, "--output", folder)
    model, ids = load(folder), ids_below(vocabulary, 7)
    bench.expect("trained " + name, "logits of what was trained here",
                 distance(bench.our_logits(run, ids), their_logits(model, ids)), TOLERANCE)
    return folder


def check_tokenizer(bench, name, folder, text):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ours = bench.ring("tokenizer", "encode", bench.path(name + ".rmt"), text).split()
    theirs = [str(i) for i in tokenizer(text)["input_ids"]]
    bench.expect(name, "tokens that differ", sum(a != b for a, b in zip(ours, theirs)) +
                 abs(len(ours) - len(theirs)), 0)


def write_corpora(bench):
    with open(bench.path("text.txt"), "w") as f:
        for i in range(800):
            f.write("line %d of a text that repeats itself %d times, and more\n" % (i, i % 7))
    with open(bench.path("train.yaml"), "w") as f:
        f.write("model: {mlp: swiglu}\n")
    for kind in ("bpe", "byte-bpe"):
        bench.ring("tokenizer", "train", "--kind", kind, "--vocab-size", "300", "--input", bench.path("text.txt"),
                   "--output", bench.path(kind + ".rmt"))
    for name, tokenizer in (("bytes", "bytes"), ("bpe", bench.path("bpe.rmt")),
                            ("byte-bpe", bench.path("byte-bpe.rmt"))):
        bench.ring("data", "prepare", "--input", bench.path("text.txt"), "--tokenizer", tokenizer, "--output",
                   bench.path(name + ".h5"), "--validation-fraction", "0.1")


def main():
    folder = tempfile.mkdtemp(prefix="ringmaster-transformers-")
    bench = Bench(sys.argv[1], sys.argv[2], folder)
    print("transformers %s, torch %s" % (transformers.__version__, torch.__version__))
    try:
        for seed, (name, config) in enumerate(MODELS.items()):
            check_model(bench, name, config, seed)
        check_with_images(bench, "qwen3.5-images", 3)
        check_names_of_classes(bench, "olmo-hybrid", 4)
        write_corpora(bench)
        for name, settings in TRAINED.items():
            check_trained(bench, name, settings, bench.path("bytes.h5"), 257)
        for name in ("bpe", "byte-bpe"):  # SentencePiece's and a tokenizer.json
            exported = check_trained(bench, name, [], bench.path(name + ".h5"), 300)
            check_tokenizer(bench, name, exported, "a text that repeats itself, line 12")
        for name in ("qwen3.5", "olmo-hybrid"):
            settings = [*TRAINED[name], "train.steps=20"]
            check_greedy(bench, name + "-text", check_trained(bench, name + "-text", settings,
                                                              bench.path("byte-bpe.h5"), 300))
    finally:
        shutil.rmtree(folder)
    bench.summary()
    return bench.wrong > 0


if __name__ == "__main__":
    sys.exit(main())
