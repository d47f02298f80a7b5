#!/usr/bin/env python3
"""Prints the runs of general categories for text/unicode/categories.cpp, from Unicode's DerivedGeneralCategory.txt of
the version in text/unicode/categories.h.

unicode_categories.py DerivedGeneralCategory.txt
"""

import sys

NAMES = "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co".split()
ALTERNATING = 31  # Lu, Ll, Lu, ..


def read(path):
    categories = ["Cn"] * 0x110000
    for line in open(path, encoding="utf-8"):
        fields = line.split("#")[0].split(";")
        if len(fields) == 2:
            first, _, last = fields[0].strip().partition("..")
            for c in range(int(first, 16), int(last or first, 16) + 1):
                categories[c] = fields[1].strip()
    return categories


def runs_of(categories):
    starts = [c for c, k in enumerate(categories) if c == 0 or categories[c - 1] != k] + [len(categories)]
    runs, i = [], 0
    while i + 1 < len(starts):
        end = i
        while starts[end + 1] == starts[end] + 1 and categories[starts[end]] == ("Lu", "Ll")[(end - i) % 2]:
            end += 1
        alternates = end - i >= 3
        runs.append((starts[i], ALTERNATING if alternates else NAMES.index(categories[starts[i]])))
        i = end if alternates else i + 1
    return runs


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    line = "   "
    for first, kind in runs_of(read(sys.argv[1])):
        entry = f" 0x{first << 5 | kind:X},"
        if len(line + entry) > 120:
            print(line)
            line = "   "
        line += entry
    print(line)


main()
