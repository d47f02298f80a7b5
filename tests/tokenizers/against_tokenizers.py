#!/usr/bin/env python3
"""Compares tokenizer.json files with Hugging Face's tokenizers: ids, offsets and decoded text on a hard corpus.

against_tokenizers.py RINGMASTER [--bytes N] [--file TOKENIZER_JSON]...

1. Vocabularies that tokenizers trains and random ones, with each pattern and setting that this program supports. The
   patterns of published models are tested on the whole corpus (10 MB), all others on a tenth of it, from all parts.
2. The same for files that --file names.
3. Vocabularies of `ringmaster tokenizer train --kind byte-bpe`, which tokenizers must load.

Exits with 77, which CTest calls skipped, if the package tokenizers is missing.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unicodedata

try:
    import numpy as np
    import tokenizers
    from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                            trainers)
except ImportError as e:
    print("skipped:", e)
    sys.exit(77)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import corpus

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + REST
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + REST
CL100K = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
BLANK = "\u2581"


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(pattern, behavior, invert)


def byte_level(*before, use_regex=False, prefix=False):
    return pre_tokenizers.Sequence([*before, pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=use_regex)])


def bytes_vocabulary(tokenizer, texts, size=6000):
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|begin|>"]))
    return tokenizer


def bpe(pre_tokenizer, normalizer=None, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    return tokenizer


def with_bos(tokenizer):
    """Adds the begin token like Llama 3."""
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 1)])])
    return tokenizer


def with_added(tokenizer):
    tokenizer.add_tokens([AddedToken("<|tool|>", special=True), AddedToken("the", single_word=True),
                          AddedToken("    ", normalized=False), AddedToken("<mask>", lstrip=True, rstrip=True),
                          AddedToken("<|tool|>x", normalized=False), AddedToken("RETURN", normalized=True),
                          AddedToken("\u65e5\u672c", normalized=True), AddedToken("\u304b\u3099", rstrip=True)])
    return tokenizer


def like_llama2(texts, first_only=False, unk_only=False):
    """Trains a vocabulary like SentencePiece's: characters, a blank in front, bytes for unknown characters."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    trained.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=6000, show_progress=False, limit_alphabet=1500))
    model = json.loads(trained.to_str())["model"]
    names = ["<unk>", "<s>", "</s>"] + ([] if unk_only else ["<0x%02X>" % b for b in range(256)])
    pieces = names + [p for p in sorted(model["vocab"], key=model["vocab"].get) if p not in names]
    merges = [tuple(m) for m in model["merges"]]
    tokenizer = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, merges, unk_token="<unk>", fuse_unk=True,
                                     byte_fallback=not unk_only))
    if first_only:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def random_merges(seed):
    """Makes random merges that no text suggests, so that errors in the order of merges show."""
    rng = random.Random(seed)
    pieces, merges = sorted(pre_tokenizers.ByteLevel.alphabet()), []
    likely = [pieces.index(c) for c in "etaoinshr \u0120\u010a\u00d0\u00d8\u00e3" if c in pieces]
    while len(pieces) < 5000:
        a, b = (pieces[rng.choice(likely) if rng.random() < 0.6 else rng.randrange(len(pieces))] for _ in range(2))
        merges.append((a, b))
        if a + b not in pieces[-400:] and a + b not in set(pieces):
            pieces.append(a + b)
            likely.append(len(pieces) - 1)
    tokenizer = bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), vocab={p: i for i, p in enumerate(pieces)},
                    merges=list(dict.fromkeys(merges)))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def families(texts):
    """Yields tokenizers with the patterns of published models."""
    yield "GPT-2", bytes_vocabulary(bpe(pre_tokenizers.ByteLevel(add_prefix_space=False)), texts)
    llama = bytes_vocabulary(bpe(byte_level(split(Regex(LLAMA3))), ignore_merges=True), texts)
    yield "Llama 3", with_bos(llama)
    yield "Qwen2", bytes_vocabulary(bpe(byte_level(split(Regex(QWEN2))), normalizers.NFC()), texts)
    digits = pre_tokenizers.Digits(individual_digits=True)
    yield "SmolLM", bytes_vocabulary(bpe(byte_level(digits, use_regex=True)), texts)


def others(texts):
    yield "Llama 2", like_llama2(texts)
    yield "Metaspace, first", like_llama2(texts, first_only=True)
    yield "unknown, fused", like_llama2(texts, unk_only=True)
    yield "random merges", random_merges(1)
    yield "GPT-2, a space in front", bytes_vocabulary(bpe(pre_tokenizers.ByteLevel(add_prefix_space=True)), texts)
    yield "added tokens", with_added(bytes_vocabulary(bpe(byte_level(split(Regex(LLAMA3)))), texts))
    yield "added tokens, NFKC", with_added(bytes_vocabulary(
        bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFKC()), texts))
    yield "lower case, NFD", bytes_vocabulary(
        bpe(byte_level(split(Regex(QWEN2))), normalizers.Sequence([normalizers.Lowercase(), normalizers.NFD()])), texts)
    yield "digits together", bytes_vocabulary(bpe(byte_level(pre_tokenizers.Digits(False), use_regex=True)), texts)
    for name, pattern in (("cl100k", CL100K), ("o200k", O200K)):
        yield name + ", by PCRE2", bytes_vocabulary(bpe(byte_level(split(Regex(pattern)))), texts)
    yield "DeepSeek, by PCRE2", bytes_vocabulary(bpe(byte_level(*[split(Regex(p)) for p in DEEPSEEK])), texts)
    yield "Removed, inverted", bytes_vocabulary(bpe(byte_level(split(Regex(LLAMA3), "removed", True))), texts)
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        yield "literal, " + behavior, bytes_vocabulary(bpe(byte_level(split(".", behavior))), texts)
        yield "pattern, " + behavior, bytes_vocabulary(bpe(byte_level(split(Regex(r"\s|(?=\p{Lu})"), behavior))), texts)


class Bench:
    def __init__(self, binary, folder):
        self.binary, self.folder, self.wrong = os.path.abspath(binary), folder, 0

    def ring(self, *arguments, stdin=None):
        done = subprocess.run([self.binary, "tokenizer", *arguments], input=stdin, capture_output=True)
        if done.returncode:
            raise RuntimeError("ringmaster tokenizer %s: %s" % (" ".join(arguments), done.stderr.decode()))
        return done.stdout

    def expect(self, what, bad, detail=""):
        self.wrong += bool(bad)
        print("%-44s %s  %s" % (what, "WRONG" if bad else "ok", detail), flush=True)


def byte_places(text):
    """Returns the byte offsets of each character and of the end."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    sizes = 1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000)
    return np.concatenate([[0], np.cumsum(sizes)])


def ours(bench, file, text):
    rows = [line.split(b"\t", 3)[:3] for line in bench.ring("encode", file, "--offsets", stdin=text).split(b"\n")[:-1]]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def first_difference(a, b):
    if len(a) == len(b) and (a == b).all():
        return None
    n = min(len(a), len(b))
    differs = np.nonzero((a[:n] != b[:n]).any(axis=1))[0]
    return int(differs[0]) if len(differs) else n


def known_to(normalizer, text):
    """Removes characters that tokenizers normalises differently, since its Unicode tables are older."""
    forms = {f: getattr(normalizers, f)() for f in ("NFC", "NFD", "NFKC", "NFKD")}
    def agrees(c):
        probe = "a\u0345" + c + "\u0334a"
        return all(n.normalize_str(probe) == unicodedata.normalize(f, probe) for f, n in forms.items())
    unknown = {c for c in set(text) if not agrees(c)} if normalizer else set()
    return text.translate({ord(c): None for c in unknown}), len(unknown)


def compare(bench, name, tokenizer, file, text):
    tokenizer.no_truncation()
    text, unknown = known_to(tokenizer.normalizer, text)
    encoding = tokenizer.encode(text, add_special_tokens=False)
    places = byte_places(text)
    offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    theirs = np.column_stack([np.array(encoding.ids, dtype=np.int64), places[offsets]])
    raw = text.encode()
    mine = ours(bench, file, raw)
    at = first_difference(mine, theirs)
    detail = "%d tokens" % len(theirs) + (", without %d characters" % unknown if unknown else "")
    if at is not None:
        where = int(min(theirs[at:at + 1, 1].tolist() + [len(raw)]))
        detail = "token %d: %s, not %s, near %r" % (at, mine[at:at + 3].tolist(), theirs[at:at + 3].tolist(),
                                                    raw[max(0, where - 20):where + 30].decode("utf-8", "replace"))
    bench.expect(name, at is not None, detail)
    ids = encoding.ids
    decoded = bench.ring("decode", file, stdin=" ".join(map(str, ids)).encode()).decode("utf-8", "replace")
    bench.expect(name + ": decoded", decoded != tokenizer.decode(ids))
    plain = bench.ring("encode", file, stdin=raw).split()
    bench.expect(name + ": without offsets", [int(i) for i in plain] != mine[:, 0].tolist())
    short = "to be"
    special = [int(i) for i in bench.ring("encode", file, "--special", short).split()]
    bench.expect(name + ": with its special tokens", special != tokenizer.encode(short).ids)


def check_training(bench, text):
    sample = os.path.join(bench.folder, "sample.txt")
    with open(sample, "w", encoding="utf-8", newline="") as f:
        f.write(text)
    for pattern in ("gpt2", "llama3", "qwen2"):
        file = os.path.join(bench.folder, pattern + ".json")
        bench.ring("train", "--kind", "byte-bpe", "--pattern", pattern, "--vocab-size", "5000", "--input", sample,
                   "--as-text", "--output", file)
        compare(bench, "trained here, " + pattern, Tokenizer.from_file(file), file, text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ringmaster")
    parser.add_argument("--bytes", type=int, default=10_000_000)
    parser.add_argument("--file", action="append", default=[])
    parser.add_argument("--only", default="")
    a = parser.parse_args()
    print("tokenizers", tokenizers.__version__)
    text = corpus.corpus(a.bytes)
    part = "".join(text[at:at + 2000] for at in range(0, len(text), 20000))
    folder = tempfile.mkdtemp(prefix="ringmaster-tokenizers-")
    bench = Bench(a.ringmaster, folder)
    try:
        for file in a.file:
            compare(bench, file, Tokenizer.from_file(file), file, text)
        for make, sample in ((families, text), (others, part)):
            for name, tokenizer in make([part[i:i + 20000] for i in range(0, len(part), 20000)]):
                if a.only not in name:
                    continue
                file = os.path.join(folder, "tokenizer.json")
                tokenizer.save(file)
                compare(bench, name, tokenizer, file, sample)
        if a.only in "trained":
            check_training(bench, part)
    finally:
        shutil.rmtree(folder)
    print("%d wrong" % bench.wrong)
    return bench.wrong > 0


if __name__ == "__main__":
    sys.exit(main())
