#!/usr/bin/env python3
"""Writes the kept inputs of fuzz_token_store: python3 tests/fuzz/make_token_store.py tests/fuzz/corpus/token_store

The smallest files that data/token_format.h describes. They contain no HDF5, since the reader never looks at it, and no
hashes, since the target adds them.
"""
import pathlib
import struct
import sys

BLOCK = 65536


def corpus(vocab, documents, masked=False):
    """`documents` lists the lengths of the documents of each of the two splits."""
    width = 2 if vocab <= 65536 else 4
    data = bytearray(2048)

    def place(content):
        offset = len(data)
        data.extend(content)
        return struct.pack("<2Q", offset, len(content))

    tokenizer = place(b"ringmaster tokenizer 2\nhash 6f0a3dbb21c2f1d5\nkind bytes\n")
    splits = masks = b""
    for lengths in documents:
        tokens = sum(lengths)
        starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)] if tokens else []
        numbers = b"".join(struct.pack("<H" if width == 2 else "<I", (7 * i) % vocab) for i in range(tokens))
        offsets = b"".join(struct.pack("<Q", s) for s in starts)
        tables = [place(bytes(8 * ((len(part) + BLOCK - 1) // BLOCK))) for part in (numbers, offsets)]
        splits += struct.pack("<3Q", tokens, len(lengths) if tokens else 0, tokens)
        splits += place(numbers) + place(offsets) + tables[0] + tables[1]
        if masked:
            bits = sum(1 << i for i in range(tokens) if i % 3)
            masks += struct.pack("<2Q", bits.bit_count(), bits.bit_count())
            masks += place(bits.to_bytes((tokens + 7) // 8, "little")) + place(bytes(8))
    template = place(b'{"chat_template": ""}') if masked else b""
    version = 3 if masked else 2
    index = b"ringmaster corpus\n".ljust(24, b"\0") + struct.pack("<5Q", version, len(data), BLOCK, 0, vocab) + tokenizer
    index += b"6f0a3dbb21c2f1d5" + b"bytes".ljust(24, b"\0") + splits + b"a seed".ljust(1000, b"\0") + masks + template
    data[: len(index)] = index
    return bytes(data)


folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
(folder / "two_splits").write_bytes(corpus(257, [[100, 0, 1, 17], [20, 30]]))
(folder / "wide_tokens").write_bytes(corpus(70000, [[64, 3], []]))
(folder / "empty").write_bytes(corpus(257, [[], []]))
(folder / "masked").write_bytes(corpus(257, [[100, 0, 1, 17], [20, 33]], masked=True))
