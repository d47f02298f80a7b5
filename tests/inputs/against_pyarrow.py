#!/usr/bin/env python3
"""Prepares corpora from Parquet tables that pyarrow wrote: they must have the same tokens, documents and masks as those
from JSON Lines of the same rows. Damaged and unsuitable tables must be refused by name.

against_pyarrow.py RINGMASTER

Exits with 77, which CTest calls skipped, if pyarrow or h5py is missing or the program was built without Arrow.
"""

import json
import os
import random
import subprocess
import sys
import tempfile

try:
    import h5py
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as e:
    print("skipped:", e)
    sys.exit(77)

WORDS = ["one", "caf\u00e9", "\u96ea", "\U0001f600", "a\tb", "x\n", "\"quoted\"", "\\", "\0", "The quick brown fox"]
TEMPLATE = ("{% for m in messages %}<|{{ m.role }}|>{% generation %}{{ m.content }}{% endgeneration %}"
            "{% if m.note is undefined %}.{% endif %}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}")


class Program:
    def __init__(self, path, folder):
        self.path, self.output = path, os.path.join(folder, "corpus.h5")

    def prepare(self, path, options):
        words = [self.path, "data", "prepare", "--input", path, "--tokenizer", "bytes", "--validation-fraction", "0",
                 "--force", "--output", self.output, *options]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    # Returns the hash of all tokens, documents and the mask of the corpus, and the number of documents.
    def identity(self, path, options):
        done = self.prepare(path, options)
        assert done.returncode == 0, done.stdout + done.stderr
        with h5py.File(self.output) as f:
            return f["train"].attrs["tokens_hash"], f["train"].attrs["documents"]

    def refused(self, path, parts, options=()):
        done = self.prepare(path, options)
        assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
        for part in parts:
            assert part in done.stderr, f"'{part}' is not in: {done.stderr}"


def text(r):
    return " ".join(r.choice(WORDS) for _ in range(r.randint(0, 30)))


def message(r, role):
    return {"role": role, "content": text(r) or "-", "note": r.choice([None, "n"])}


# Removes nested keys whose value is null: a table has all keys in each row, with null for keys that the row lacks.
def without_nulls(value, inside=False):
    if isinstance(value, list):
        return [without_nulls(item, True) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: without_nulls(item, True) for name, item in value.items() if item is not None or not inside}


def rows(count, seed):
    r = random.Random(seed)
    for i in range(count):
        turns = [message(r, role) for _ in range(r.randint(1, 4)) for role in ("user", "assistant")]
        yield {"id": i, "text": text(r), "meta": {"body": text(r), "source": [{"url": "u", "rank": 1.5}]},
               "prompt": text(r), "completion": text(r), "messages": turns, "when": None, "flag": i % 2 == 0,
               "tools": r.choice([None, [{"name": "search", "properties": {"city": "text"}}],
                                 [{"name": "add", "properties": {"a": "number", "b": "number"}}]])}


# Yields conversations in the forms that `--chat-field` recognizes. A table has all their columns, a line only its own.
def chat_rows(count, seed):
    r = random.Random(seed)
    for i in range(count):
        said = [text(r) or "-" for _ in range(4)]
        yield ({"messages": [message(r, "user"), message(r, "assistant")]},
               {"conversations": [{"from": who, "value": t} for who, t in zip(("human", "gpt") * 2, said)],
                "system": r.choice([None, "Be brief."])},
               {"instruction": said[0], "input": r.choice([None, "", said[1]]), "output": said[2]})[i % 3]


# Yields the same rows in several forms: (name, table, options for writing it).
def forms(table):
    def texts(of_type):
        return table.set_column(table.schema.get_field_index("text"), "text", of_type)
    yield "plain", table, {"compression": "none", "use_dictionary": False}
    yield "snappy", table, {"row_group_size": 100, "write_page_checksum": True}
    yield "zstd", table, {"compression": "zstd", "data_page_version": "2.0", "data_page_size": 1000}
    yield "gzip", table, {"compression": "gzip", "row_group_size": 1}
    yield "large_string", texts(table["text"].cast(pa.large_string())), {"row_group_size": 333}
    yield "dictionary", texts(table["text"].dictionary_encode()), {"row_group_size": 257}
    yield "binary", texts(table["text"].cast(pa.binary())), {"compression": "brotli"}


def compare(program, folder):
    data = list(rows(1000, seed=1))
    table = pa.Table.from_pylist(data)
    lines, path = os.path.join(folder, "rows.jsonl"), os.path.join(folder, "rows.parquet")
    with open(lines, "w", encoding="utf-8") as out:
        out.writelines(json.dumps(without_nulls(row)) + "\n" for row in data)
    template = os.path.join(folder, "template.jinja")
    with open(template, "w", encoding="utf-8") as out:
        out.write(TEMPLATE)
    seen = set()
    for what, options in {
            "text": [], "a member of a member": ["--text-field", "meta.body"],
            "pairs": ["--prompt-field", "prompt", "--completion-field", "completion"],
            "conversations": ["--chat-field", "messages", "--chat-template", template]}.items():
        wanted = program.identity(lines, options)
        for form, table_of_form, written in forms(table):
            pq.write_table(table_of_form, path, **written)
            assert program.identity(path, options) == wanted, f"{what}, {form}: not the corpus of the JSON Lines"
        print(what + ":", wanted[1], "documents, the same")
        seen.add(wanted[0])
    assert len(seen) == 4, "other members gave the same corpus"


def compare_chats(program, folder):
    data = list(chat_rows(300, seed=3))
    lines, path = os.path.join(folder, "chats.jsonl"), os.path.join(folder, "chats.parquet")
    with open(lines, "w", encoding="utf-8") as out:
        out.writelines(json.dumps(without_nulls(row, True)) + "\n" for row in data)
    columns = sorted({name for row in data for name in row})
    table = {name: [row.get(name) for row in data] for name in columns}
    pq.write_table(pa.table(table | {"id": list(range(300))}), path)
    options = ["--chat-field", "--chat-template", os.path.join(folder, "template.jinja")]
    wanted = program.identity(lines, options)
    assert wanted[1] == 300 and program.identity(path, options) == wanted, "not the corpus of the JSON Lines"
    print("forms of conversations:", wanted[1], "documents, the same")


def refuse(program, folder):
    path = os.path.join(folder, "bad.parquet")

    def expect(columns, parts, options=()):
        pq.write_table(pa.table(columns), path)
        program.refused(path, parts, options)

    expect({"id": [1], "body": ["a"]}, ["bad.parquet: row 1: ", "no 'text'", "its members are: id, body", "--text-field"])
    expect({"text": ["a", None]}, ["bad.parquet: row 2: ", "is a JSON null, not a string"])
    expect({"text": pa.array([1, 2], pa.timestamp("s"))}, ["row 1: ", "is a JSON binary, not a string"])
    expect({"text": pa.array([b"a", b"\xff"])}, ["row 2: ", "is a JSON binary, not a string"])
    expect({"text": [["a"]]}, ["row 1: ", "is a JSON array, not a string"])
    expect({"prompt": ["a"]}, ["row 1: ", "no 'completion'"],
           ["--prompt-field", "prompt", "--completion-field", "completion"])
    expect({"messages": [[{"role": "user"}]]}, ["row 1: ", "'messages' of this record: "],
           ["--chat-field", "messages", "--chat-template", "chatml"])
    expect({"text": ["a"]}, ["is a Parquet table, where each record is a document"], ["--document", "line"])
    expect({"text": ["a"]}, ["is a Parquet table: use --split hash"], ["--split", "tail"])
    expect({"text": pa.array([], pa.string())}, ["the input has no text"])
    os.rename(path, os.path.join(folder, "bad.jsonl"))
    program.refused(os.path.join(folder, "bad.jsonl"), ["a Parquet table", "rename it to .parquet"])


# Truncates the file or changes bytes anywhere: the result is an error that names the file, or rows with changed text.
def damage(program, folder):
    r = random.Random(2)
    path = os.path.join(folder, "damaged.parquet")
    table = pa.table({"text": [text(r) for _ in range(300)], "more": [[text(r)] for _ in range(300)]})
    pq.write_table(table, path, row_group_size=100, write_page_checksum=True, compression="zstd")
    with open(path, "rb") as f:
        whole = f.read()
    refused = 0
    for trial in range(150):
        bad = bytearray(whole[:r.randrange(5, len(whole))] if trial % 3 == 0 else whole)
        if trial % 3:
            tail = r.randrange(2) * (len(bad) - 1200)  # the footer, or anywhere
            for _ in range(r.randint(1, 8)):
                bad[r.randrange(max(4, tail), len(bad))] = r.randrange(256)
        with open(path, "wb") as f:
            f.write(bad)
        done = program.prepare(path, [])
        assert done.returncode in (0, 1), f"trial {trial}: ended with {done.returncode}: {done.stderr[-500:]}"
        if done.returncode == 1:
            assert "damaged.parquet" in done.stderr, done.stderr
            refused += 1
    assert refused > 100, refused
    print("damage:", refused, "of 150 refused, no crash")


def main(path):
    with tempfile.TemporaryDirectory() as folder:
        program = Program(path, folder)
        probe = os.path.join(folder, "probe.parquet")
        pq.write_table(pa.table({"text": ["a"]}), probe)
        done = program.prepare(probe, [])
        if "this build cannot read" in done.stderr:
            print("skipped:", done.stderr)
            sys.exit(77)
        compare(program, folder)
        compare_chats(program, folder)
        refuse(program, folder)
        damage(program, folder)


main(sys.argv[1])
