#!/usr/bin/env python3
"""Compares GGUF files with llama.cpp and with the package gguf, on a CPU.

against_llama_cpp.py RINGMASTER LOGITS: the program, and the one built from logits.cpp.

1. Tiny random models of each family are imported and exported as GGUF; llama.cpp must give our logits, in every type.
   The package gguf must read every tensor, and its own rounding to q8_0 must give the same bytes.
2. Runs of `ringmaster train`, each with a different tokenizer, are exported; llama.cpp must split text into our tokens,
   spell them alike, and write the same greedy text.

Exits with 77, which CTest calls skipped, if numpy, gguf or llama_cpp_py_sync is missing. The latter is llama.cpp, built
for a CPU and for a C library of 2.38 or newer.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

try:
    import gguf
    import numpy as np
    from llama_cpp_py_sync import _cffi_bindings as bindings
    FFI, LIB = bindings.get_ffi(), bindings.get_lib()
except (ImportError, RuntimeError) as e:
    print("skipped:", e)
    sys.exit(77)

TOKENS = 48
VOCABULARY = 320  # more than the tokenizer `bytes` has: the rest is unused

# Maximum distance of the logits from ours, as vectors. llama.cpp rounds inputs of matrix products to the type of the
# matrices, and takes gelu from a table of f16.
TOLERANCE = {"f32": 1e-5, "f16": 5e-3, "bf16": 4e-2, "q8_0": 1e-1}
GELU_TOLERANCE = 2e-3

SIZES = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=1e4,
             tie_word_embeddings=False)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
GEMMA = dict(SIZES, head_dim=24, query_pre_attn_scalar=24, hidden_activation="gelu_pytorch_tanh",
             tie_word_embeddings=True)
GPT2 = dict(vocab_size=VOCABULARY, n_embd=64, n_layer=3, n_head=4, n_positions=64, n_inner=None)

MODELS = {
    "llama": ("Llama", dict(SIZES)),
    "llama-3": ("Llama", dict(SIZES, rope_theta=500.0, rope_scaling=LLAMA3, tie_word_embeddings=True)),
    "llama-linear": ("Llama", dict(SIZES, rope_scaling=dict(rope_type="linear", factor=4.0))),
    "llama-biases": ("Llama", dict(SIZES, attention_bias=True, mlp_bias=True)),
    "llama-head-dim": ("Llama", dict(SIZES, head_dim=24)),
    "smollm2": ("Llama", dict(SIZES, hidden_size=72, num_attention_heads=9, num_key_value_heads=3,
                              tie_word_embeddings=True)),
    "mistral": ("Mistral", dict(SIZES, sliding_window=None)),
    "qwen2": ("Qwen2", dict(SIZES, tie_word_embeddings=True)),
    "qwen2-linear": ("Qwen2", dict(SIZES, rope_scaling=dict(rope_type="linear", factor=2.0))),
    "qwen3": ("Qwen3", dict(SIZES, head_dim=32)),
    "olmo2": ("Olmo2", dict(SIZES)),
    "olmo3": ("Olmo3", dict(SIZES, num_hidden_layers=5, sliding_window=16)),
    "gemma2": ("Gemma2", dict(GEMMA, sliding_window=16, attn_logit_softcapping=5.0, final_logit_softcapping=4.0)),
    "gemma3": ("Gemma3", dict(GEMMA, num_hidden_layers=7, sliding_window=16, rope_theta=1e6, rope_local_base_freq=1e4,
                              rope_scaling=dict(rope_type="linear", factor=4.0))),
    "gpt2": ("GPT2", dict(GPT2)),
    "gpt2-untied": ("GPT2", dict(GPT2, n_inner=80, tie_word_embeddings=False, layer_norm_epsilon=1e-3)),
}


def llama_shapes(family, c):
    width, inner, head = c["hidden_size"], c["intermediate_size"], c.get("head_dim")
    head = head or width // c["num_attention_heads"]
    queries, keys = head * c["num_attention_heads"], head * c["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], width), "model.norm.weight": (width,)}
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (c["vocab_size"], width)
    for i in range(c["num_hidden_layers"]):
        block = "model.layers.%d." % i
        matrices = {"self_attn.q_proj": (queries, width), "self_attn.k_proj": (keys, width),
                    "self_attn.v_proj": (keys, width), "self_attn.o_proj": (width, queries),
                    "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width), "mlp.down_proj": (width, inner)}
        for name, shape in matrices.items():
            shapes[block + name + ".weight"] = shape
            if c.get("mlp_bias") or family == "Qwen2" and name[-6:] in ("q_proj", "k_proj", "v_proj"):
                shapes[block + name + ".bias"] = shape[:1]
        norms = ["post_attention_layernorm"]
        norms += [] if family.startswith("Olmo") else ["input_layernorm"]
        norms += ["post_feedforward_layernorm"] if family.startswith(("Olmo", "Gemma")) else []
        norms += ["pre_feedforward_layernorm"] if family.startswith("Gemma") else []
        for name in norms:
            shapes[block + name + ".weight"] = (width,)
        if family in ("Qwen3", "Gemma3"):
            shapes[block + "self_attn.q_norm.weight"] = shapes[block + "self_attn.k_norm.weight"] = (head,)
        if family.startswith("Olmo"):
            shapes[block + "self_attn.q_norm.weight"] = (queries,)
            shapes[block + "self_attn.k_norm.weight"] = (keys,)
    return shapes


def gpt2_shapes(c):
    width, inner = c["n_embd"], c["n_inner"] or 4 * c["n_embd"]
    shapes = {"transformer.wte.weight": (c["vocab_size"], width), "transformer.wpe.weight": (c["n_positions"], width)}
    if not c.get("tie_word_embeddings", True):
        shapes["lm_head.weight"] = (c["vocab_size"], width)
    for i in range(c["n_layer"]):
        block = "transformer.h.%d." % i
        for name, shape in {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width),
                            "mlp.c_fc": (width, inner), "mlp.c_proj": (inner, width)}.items():
            shapes[block + name + ".weight"], shapes[block + name + ".bias"] = shape, shape[1:]
    for name in ["transformer.ln_f"] + ["transformer.h.%d.ln_%d" % (i, n) for i in range(c["n_layer"]) for n in (1, 2)]:
        shapes[name + ".weight"] = shapes[name + ".bias"] = (width,)
    return shapes


def write_published(folder, family, config, seed):
    """Makes large weights, and norms and biases other than ones and zeros, so that mixed-up tensors show."""
    os.makedirs(folder)
    kind = {"GPT2": "GPT2LMHeadModel"}.get(family, family + "ForCausalLM")
    with open(os.path.join(folder, "config.json"), "w") as f:
        named = {"Gemma3": "gemma3_text"}.get(family, family.lower())
        json.dump(dict(config, architectures=[kind], model_type=named), f)
    rng, header, data = np.random.default_rng(seed), {}, b""
    for name, shape in (gpt2_shapes(config) if family == "GPT2" else llama_shapes(family, config)).items():
        vector = len(shape) == 1
        ones = vector and name.endswith(".weight") and not family.startswith("Gemma")  # Gemma adds 1 itself
        values = rng.standard_normal(shape) * (0.2 if vector else 0.15) + ones
        blob = values.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(blob)]}
        data += blob
    head = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(len(head).to_bytes(8, "little") + head + data)


@FFI.callback("void(enum ggml_log_level, const char *, void *)")
def log_nothing(_level, _text, _data):
    pass


class LlamaCpp:
    """A file loaded by llama.cpp."""

    def __init__(self, file):
        self.model = LIB.llama_model_load_from_file(file.encode(), LIB.llama_model_default_params())
        if self.model == FFI.NULL:
            raise RuntimeError("llama.cpp does not load " + file)
        self.vocab = LIB.llama_model_get_vocab(self.model)

    def close(self):
        LIB.llama_model_free(self.model)

    def logits(self, ids):
        params = LIB.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = 64
        params.type_k = params.type_v = LIB.GGML_TYPE_F32
        params.flash_attn_type = 0
        context = LIB.llama_init_from_model(self.model, params)
        batch = LIB.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, 1
            batch.seq_id[i][0] = 0
        if LIB.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        count = LIB.llama_vocab_n_tokens(self.vocab)
        rows = [np.frombuffer(FFI.buffer(LIB.llama_get_logits_ith(context, i), 4 * count), np.float32).copy()
                for i in range(len(ids))]
        LIB.llama_batch_free(batch)
        LIB.llama_free(context)
        return np.stack(rows)

    def tokens(self, text, special=False, parsed=False):
        data = text.encode()
        ids = FFI.new("llama_token[]", 4 * len(data) + 16)
        count = LIB.llama_tokenize(self.vocab, data, len(data), ids, len(ids), special, parsed)
        return [ids[i] for i in range(count)]

    def spelled(self, ids):
        buffer, out = FFI.new("char[]", 512), b""
        for i in ids:
            out += bytes(FFI.buffer(buffer, LIB.llama_token_to_piece(self.vocab, i, buffer, 512, 0, False)))
        return out

    def greedy(self, text, most):
        ids = self.tokens(text, special=True)
        prompt = len(ids)
        while len(ids) < prompt + most:
            ids.append(int(self.logits(ids)[-1].argmax()))
            if LIB.llama_vocab_is_eog(self.vocab, ids[-1]):
                break
        return self.spelled(ids).decode(errors="replace")


class Bench:
    """A folder, the two programs, and the errors found so far."""

    def __init__(self, binary, logits, folder):
        self.binary, self.logits_binary, self.folder = os.path.abspath(binary), os.path.abspath(logits), folder
        self.wrong = 0

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def ring(self, *arguments, stdin=None):
        done = subprocess.run([self.binary, *arguments], cwd=self.folder, capture_output=True, input=stdin)
        if done.returncode:
            raise RuntimeError("ringmaster %s: %s%s" % (" ".join(arguments), done.stdout, done.stderr))
        return done.stdout.decode()

    def our_logits(self, run, ids):
        ids.astype(np.int32).tofile(self.path("tokens"))
        subprocess.run([self.logits_binary, "whole", run, self.path("tokens"), self.path("logits")], check=True)
        return np.fromfile(self.path("logits"), np.float32).reshape(len(ids), -1)

    def expect(self, what, value, allowed):
        good = value <= allowed
        self.wrong += not good
        print("%-44s %.2e  %s" % (what, value, "ok" if good else "WRONG, at most %.0e" % allowed), flush=True)


def differing_values(exact, rounded, kind):
    """Returns how many tensors of `rounded` differ from the package gguf's rounding of those in `exact`."""
    wrong = 0
    for a, b in zip(exact.tensors, rounded.tensors, strict=True):
        quant = b.tensor_type
        wanted = gguf.quants.quantize(np.asarray(a.data, np.float32), quant)
        wrong += a.name != b.name or not np.array_equal(wanted.view(np.uint8).ravel(), b.data.view(np.uint8).ravel())
        wrong += kind == "q8_0" and len(b.shape) == 2 and b.shape[0] % 32 == 0 and quant.name not in ("Q8_0", "F32")
    return wrong


def check_model(bench, name, family, config, seed):
    write_published(bench.path("hf", name), family, config, seed)
    run, ids = bench.path("runs", name), np.random.default_rng(seed).integers(0, VOCABULARY, TOKENS)
    bench.ring("import", bench.path("hf", name), "--output", run, "--tokenizer", "bytes")
    ours, has_gelu = bench.our_logits(run, ids), family.startswith(("GPT2", "Gemma"))
    for kind, tolerance in TOLERANCE.items():
        file = bench.path("%s-%s.gguf" % (name, kind))
        bench.ring("export", run, "--format", "gguf", "--dtype", kind, "--output", file)
        model = LlamaCpp(file)
        distance = float(np.linalg.norm(model.logits(ids) - ours) / np.linalg.norm(ours))
        model.close()
        bench.expect("%s: %s" % (name, kind), distance, max(tolerance, GELU_TOLERANCE * has_gelu))
        if kind != "f32":
            exact = gguf.GGUFReader(bench.path(name + "-f32.gguf"))
            bench.expect("%s: %s, tensors that differ" % (name, kind),
                         differing_values(exact, gguf.GGUFReader(file), kind), 0)


TEXTS = ["line 12 of a text that repeats itself 3 times", "  two  blanks\n\n\n and\tmore \r\n",
         "I'LL don't we'VE'd 1234567", "naïve café, Привет мир, 你好世界, مرحبا ١٢٣",
         "emoji 🙂👩‍👩‍👧 and \u200b controls\x01\x02", "a" * 70 + "!!!??? (x[0])",
         "<|endoftext|>after", " ", "\n", "x  "]


def edited(bench, name, change):
    """Writes the tokenizer.json of a vocabulary trained here, changed to split text like another model's."""
    with open(bench.path("gpt2.json")) as f:
        tokenizer = json.load(f)
    change(tokenizer)
    with open(bench.path(name + ".json"), "w") as f:
        json.dump(tokenizer, f)


def like_smollm(t):
    t["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True}, {**t["pre_tokenizer"], "type": "ByteLevel"}]}


def like_llama3(t):
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
               r"|\s*[\r\n]+|\s+(?!\S)|\s+")
    t["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
    t["model"]["ignore_merges"] = True
    t["post_processor"] = {"type": "TemplateProcessing", "pair": [], "single": [
        {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}}}


def make_tokenizers(bench):
    with open(bench.path("text.txt"), "w") as f:
        for i in range(800):
            f.write("line %d of a text that repeats itself %d times, and naïve 你好 more\n" % (i, i % 7))
    train = ["tokenizer", "train", "--vocab-size", "330", "--input", bench.path("text.txt")]
    for pattern in ("gpt2", "llama3", "qwen2"):
        bench.ring(*train, "--kind", "byte-bpe", "--pattern", pattern, "--output", bench.path(pattern + ".json"))
    bench.ring(*train, "--kind", "bpe", "--output", bench.path("sentencepiece.model"))
    edited(bench, "smollm", like_smollm)
    edited(bench, "llama-bpe", like_llama3)
    with open(bench.path("sentencepiece.model"), "rb") as model, open(bench.path("blank.model"), "wb") as other:
        other.write(model.read() + b"\x1a\x02\x18\x01")  # normalizer_spec: add_dummy_prefix: true
    files = {name: bench.path(name + ".json") for name in ("gpt2", "llama3", "qwen2", "smollm", "llama-bpe")}
    files.update({name: bench.path(name + ".model") for name in ("sentencepiece", "blank")})
    return dict(files, bytes="bytes")


def check_tokenizer(bench, name, tokenizer):
    run, file, corpus = bench.path("trained", name), bench.path(name + ".gguf"), bench.path(name + ".h5")
    bench.ring("data", "prepare", "--input", bench.path("text.txt"), "--tokenizer", tokenizer, "--output", corpus)
    bench.ring("train", bench.path("train.yaml"), "run.directory=" + run, "data.path=" + corpus)
    bench.ring("export", run, "--format", "gguf", "--output", file)
    model, wrong, spelled = LlamaCpp(file), 0, 0
    parsed = tokenizer.endswith(".json")  # only these find special tokens in a text
    for text in TEXTS:
        ours = [int(i) for i in bench.ring("tokenizer", "encode", run, "--special", stdin=text.encode()).split()]
        theirs = model.tokens(text, special=True, parsed=parsed)
        wrong += ours != theirs
        if ours != theirs:
            print(name, repr(text), ours, theirs)
        whole = model.spelled(model.tokens(text, parsed=parsed)).decode(errors="replace")
        spelled += whole != name.startswith("blank") * " " + (text.replace("<|endoftext|>", "") if parsed else text)
    bench.expect(name + ": texts with other tokens", wrong, 0)
    bench.expect(name + ": texts that are spelled otherwise", spelled, 0)
    for prompt in ("line 7 of", "a text that"):
        ours = bench.ring("generate", run, "--prompt", prompt, "--temperature", "0", "--max-tokens", "16")
        theirs = model.greedy(prompt, 16)
        bench.expect(name + ": greedy texts that differ", ours.strip() != theirs.strip(), 0)
    model.close()


def main():
    LIB.llama_log_set(log_nothing, FFI.NULL)
    LIB.llama_backend_init()
    folder = tempfile.mkdtemp(prefix="ringmaster-llama-cpp-")
    bench = Bench(sys.argv[1], sys.argv[2], folder)
    try:
        for seed, (name, (family, config)) in enumerate(MODELS.items()):
            check_model(bench, name, family, config, seed)
        with open(bench.path("train.yaml"), "w") as f:
            f.write("model: {context: 64, layers: 2, width: 32, heads: 4, kv_heads: 2, mlp_width: 96}\n"
                    "train: {batch_size: 8, steps: 60}\noptimizer: {lr: 0.01}\nrun: {device: cpu, threads: 2}\n")
        for name, tokenizer in make_tokenizers(bench).items():
            check_tokenizer(bench, name, tokenizer)
    finally:
        shutil.rmtree(folder)
    print("%d wrong" % bench.wrong)
    return bench.wrong > 0


if __name__ == "__main__":
    sys.exit(main())
