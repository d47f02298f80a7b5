#!/usr/bin/env python3
"""Writes the kept inputs of fuzz_tokenizer_json: make_tokenizer_json.py tests/fuzz/corpus/tokenizer_json"""
import json
import pathlib
import sys

BLANK = "\u2581"


def file(pre_tokenizer, decoder, model, **more):
    base = {"added_tokens": [], "normalizer": None, "post_processor": None}
    return {**base, "pre_tokenizer": pre_tokenizer, "decoder": decoder, "model": {"type": "BPE", **model}, **more}


def added(number, content, **flags):
    return {"id": number, "content": content, "special": False, "normalized": False, **flags}


LETTERS = {c: i for i, c in enumerate("abcdehint'12\u0120\u010a\u00c3\u00a9\u00cc\u0123")}
WORDS = {**LETTERS, "th": 18, "\u0120th": 19, "12": 20}
LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
SPLIT = {"type": "Split", "behavior": "MergedWithNext", "invert": False}

gpt2 = file(LEVEL, LEVEL, {"vocab": WORDS, "merges": ["t h", ["\u0120", "th"], "1 2"]}, post_processor=LEVEL,
            normalizer={"type": "NFC"})
sequence = file(
    {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True},
                                           {**SPLIT, "pattern": {"String": " "}},
                                           {**SPLIT, "pattern": {"Regex": r"\s+(?!\S)|[^\s\p{L}]"}},
                                           {**LEVEL, "use_regex": False}]},
    LEVEL, {"vocab": WORDS, "merges": ["t h"], "ignore_merges": True},
    normalizer={"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
    added_tokens=[added(21, "<s>", special=True), added(22, "end", lstrip=True, rstrip=True),
                  added(23, "b", single_word=True, normalized=True)],
    post_processor={"type": "TemplateProcessing",
                    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                    "special_tokens": {"<s>": {"id": "<s>", "ids": [21]}}})
pieces = {"<unk>": 0, BLANK: 1, "a": 2, "b": 3, "the": 4, "t": 5, "h": 6, "e": 7, "th": 8, BLANK + "the": 9,
          **{"<0x%02X>" % b: 10 + b for b in range(0xC0, 0xF0)}}
llama = file(None, {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": BLANK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    {"vocab": pieces, "merges": ["t h", "th e", BLANK + " the"], "unk_token": "<unk>", "fuse_unk": True,
     "byte_fallback": True},
    normalizer={"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": BLANK}, {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}]})
metaspace = file({"type": "Metaspace", "replacement": BLANK, "prepend_scheme": "first", "split": True},
                 {"type": "Metaspace", "replacement": BLANK, "prepend_scheme": "first"}, llama["model"])

folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for name, content in {"gpt2": gpt2, "sequence": sequence, "llama": llama, "metaspace": metaspace}.items():
    (folder / name).write_text(json.dumps(content))
