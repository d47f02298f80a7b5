#!/usr/bin/env python3
"""Prints the results of scripts/bench_gpu.sh as a Markdown table, with medians over the rounds.

    scripts/bench_table.py steps.csv [floors.csv]
"""
import csv
import os
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench" / "peers"))
import shapes  # noqa: E402

PEAK_FLOPS = 989e12  # dense bf16 products of an H100 or H200, by the data sheet


def rows_of(path):
    if not os.path.exists(path):
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def medians(rows, keys):
    """By keys, in the order of their first row."""
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    values = [column for column in (rows[0] if rows else {}) if column not in keys]
    return {
        key: {column: statistics.median(float(row[column]) for row in group) for column in values} | {"rounds": len(group)}
        for key, group in groups.items()
    }


def main():
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    steps = medians(rows_of(sys.argv[1]), ("shape", "who"))
    floors = medians(rows_of(sys.argv[2]), ("shape",)) if len(sys.argv) == 3 else {}
    if not steps:
        raise SystemExit(f"{sys.argv[1]}: contains no measurements")
    print("| shape | who | rounds | ms | tokens/s | to PyTorch | MFU | peak GiB | first step s | floor ms | over floor |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for shape in dict.fromkeys(key[0] for key in steps):
        flops = shapes.load(shape).flops_per_token()
        peer = steps.get((shape, "pytorch"))
        floor = floors.get((shape,))
        for (of, who), row in steps.items():
            if of != shape:
                continue
            rate = row["tokens_per_second"]
            cells = [shape, who, str(row["rounds"]), f"{row['step_ms']:.1f}", f"{rate:,.0f}"]
            cells.append(f"{rate / peer['tokens_per_second']:.3f}" if peer else "")
            cells.append(f"{100 * rate * flops / PEAK_FLOPS:.1f} %")
            cells += [f"{row['peak_gib']:.1f}", f"{row['first_seconds']:.1f}"]
            cells += [f"{floor['floor_ms']:.1f}", f"{100 * (row['step_ms'] / floor['floor_ms'] - 1):.1f} %"] if floor else ["", ""]
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
