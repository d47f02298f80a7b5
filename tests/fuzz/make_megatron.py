#!/usr/bin/env python3
"""Writes the kept inputs of fuzz_megatron: python3 tests/fuzz/make_megatron.py tests/fuzz/corpus/megatron

The layout is that of Megatron-LM, megatron/core/datasets/indexed_dataset.py.
"""
import pathlib
import struct
import sys

FORMATS = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 8: "H"}


def data_set(code, documents, beyond=b""):
    """`documents` lists the token numbers of each document's sequences."""
    sequences = [s for d in documents for s in d]
    width = struct.calcsize(FORMATS[code])
    starts = [width * sum(map(len, sequences[:i])) for i in range(len(sequences))]
    boundaries = [sum(map(len, documents[:i])) for i in range(len(documents) + 1)]
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sequences), len(boundaries))
    index += struct.pack(f"<{len(sequences)}i", *map(len, sequences)) + struct.pack(f"<{len(starts)}q", *starts)
    index += struct.pack(f"<{len(boundaries)}q", *boundaries) + beyond
    tokens = [t for s in sequences for t in s]
    return struct.pack("<H", len(index)) + index + struct.pack(f"<{len(tokens)}{FORMATS[code]}", *tokens)


folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
(folder / "uint16").write_bytes(data_set(8, [[[1, 2, 299]], [[4, 256], [], [7]], []]))
(folder / "int8").write_bytes(data_set(2, [[[1, 2], [127]]]))
(folder / "uint8").write_bytes(data_set(1, [[[1, 2], [255]], [[]]]))
(folder / "int16").write_bytes(data_set(3, [[[256, 298]]]))
(folder / "int32").write_bytes(data_set(4, [[[7], [256, 0]], [[1]]]))
(folder / "int64").write_bytes(data_set(5, [[[7]], [[256, 0]], [[1]]]))
(folder / "outside").write_bytes(data_set(4, [[[7, -1]]]))
(folder / "multimodal").write_bytes(data_set(8, [[[7], [8]]], beyond=b"\0\1"))
(folder / "empty").write_bytes(data_set(8, []))
(folder / "cut").write_bytes(struct.pack("<H", 4) + b"MMID" + b"text")
(folder / "cut_to_nothing").write_bytes(struct.pack("<H", 0) + b"text")
(folder / "countless").write_bytes(
    struct.pack("<H", 34) + b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 2**62, 2**61) + b"text")
