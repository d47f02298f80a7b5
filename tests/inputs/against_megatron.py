#!/usr/bin/env python3
"""Prepares corpora from data sets that megatron-core wrote: they must have the documents that megatron-core reads. In
turn, megatron-core must read the same documents from the files of `data export`.

against_megatron.py RINGMASTER

Exits with 77, which CTest calls skipped, if megatron-core, torch or h5py is missing.
"""

import os
import random
import subprocess
import sys
import tempfile

try:
    import h5py
    import numpy as np
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
except ImportError as e:
    print("skipped:", e)
    sys.exit(77)

END = 256  # the end-of-text token of the tokenizer `bytes`
TYPES = [np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint16]


# Writes documents of several sequences, some of them empty. If `ends`, each document ends with END (--append-eod).
def write(prefix, dtype, ends, seed):
    r = random.Random(seed)
    largest = min(255, np.iinfo(dtype).max)
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=dtype)
    for _ in range(300):
        for _ in range(r.choice([0, 1, 1, 1, 3])):
            builder.add_item(torch.tensor([r.randint(0, largest) for _ in range(r.choice([0, 1, 5, 300]))]))
        if ends:
            builder.add_item(torch.tensor([END]))
        builder.end_document()
    builder.finalize(prefix + ".idx")


def merge(prefix, parts):
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=np.uint16)
    for part in parts:
        builder.add_index(part)
    builder.finalize(prefix + ".idx")


# Yields the documents as megatron-core reads them: all sequences of a document, one after another.
def documents_of(prefix):
    data = IndexedDataset(prefix)
    bounds = data.document_indices
    for begin, end in zip(bounds[:-1], bounds[1:]):
        tokens = [int(t) for s in range(begin, end) for t in data[s]]
        if tokens:
            yield tokens if tokens[-1] == END else tokens + [END]


def run(program, *words):
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def corpus_of(path, split="train"):
    with h5py.File(path) as f:
        tokens, starts = f[split]["tokens"][:], f[split]["documents"][:]
    return [tokens[a:b].tolist() for a, b in zip(starts[:-1], starts[1:])]


def prepare(program, folder, prefix):
    corpus = os.path.join(folder, "corpus.h5")
    run(program, "data", "prepare", "--input", prefix + ".idx", "--tokenizer", "bytes", "--validation-fraction", "0",
        "--force", "--output", corpus)
    return corpus


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        prefixes = []
        for i, dtype in enumerate(TYPES):
            prefix = os.path.join(folder, "set_" + dtype.__name__)
            write(prefix, dtype, ends=np.iinfo(dtype).max > END and i % 2 == 0, seed=i)
            prefixes.append(prefix)
        for i in range(2):
            prefixes.append(os.path.join(folder, f"part{i}"))
            write(prefixes[-1], np.uint16, ends=True, seed=100 + i)
        merge(os.path.join(folder, "merged"), prefixes[-2:])
        prefixes.append(os.path.join(folder, "merged"))
        for prefix in prefixes:
            wanted, corpus = list(documents_of(prefix)), prepare(program, folder, prefix)
            got = corpus_of(corpus)
            assert wanted == got, f"{prefix}: {len(wanted)} and {len(got)} documents, or other tokens"
            run(program, "data", "export", corpus, "--output", prefix + "_back")
            assert list(documents_of(prefix + "_back")) == wanted, f"{prefix}: other documents came back"
            print(os.path.basename(prefix), "the same", len(got), "documents,", sum(map(len, got)), "tokens")


main(sys.argv[1])
