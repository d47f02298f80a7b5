#!/usr/bin/env python3
"""Writes the kept inputs of fuzz_tokenizer: python3 tests/fuzz/make_tokenizer.py tests/fuzz/corpus/tokenizer

Bodies of our files, to which the target adds the hash, and small SentencePiece models (sentencepiece_model.proto).
"""
import pathlib
import struct
import sys

NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6
UNIGRAM, BPE = 1, 2


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out + bytes([value]))


def field(number, content):
    if isinstance(content, bytes):
        return varint(number << 3 | 2) + varint(len(content)) + content
    return varint(number << 3) + varint(content)


def piece(text, score, kind):
    return field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + field(3, kind))


def model(kind, fallback, charsmap=b""):
    pieces = [piece("<unk>", 0, UNKNOWN), piece("<|endoftext|>", 0, CONTROL), piece("<tag>", 0, USER)]
    if fallback:
        pieces += [piece(f"<0x{byte:02X}>", 0, BYTE) for byte in range(256)]
    words = ["\u2581", "a", "b", "c", "d", "e", "h", "n", "t", "\u2581a", "th", "the", "\u2581the", "\u00e9", "\n"]
    pieces += [piece(word, -i, NORMAL) for i, word in enumerate(words)]
    trainer = field(3, kind) + field(4, len(pieces)) + field(35, int(fallback)) + field(47, b"<|endoftext|>")
    normalizer = field(1, b"identity") + (field(2, charsmap) if charsmap else b"") + field(3, 0) + field(4, 0)
    return b"".join(pieces) + field(2, trainer) + field(3, normalizer)


folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
(folder / "bytes").write_bytes(b"kind bytes\n")
(folder / "chars").write_bytes("kind chars\nend_of_text 1\n\n abc\u00e9".encode())
(folder / "unigram").write_bytes(model(UNIGRAM, False))
(folder / "bpe").write_bytes(model(BPE, False))
(folder / "byte_fallback").write_bytes(b"kind sentencepiece\n" + model(BPE, True))
# A table of replacements that is shorter than it claims, which the library itself must check.
(folder / "charsmap").write_bytes(model(UNIGRAM, False, struct.pack("<I", 64) + bytes(40)))
