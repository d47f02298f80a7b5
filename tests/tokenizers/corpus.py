#!/usr/bin/env python3
"""Writes a text that is hard to tokenize, made of Unicode's data and texts of this machine: corpus.py FILE [BYTES]

It has sentences of random words from 30 blocks of characters, installed code and documents, emoji with modifiers and
joiners, control characters, combining marks in any order, CRLF and other ends of lines, long runs of blanks, letters
and digits, contractions, and every character that has a name. It depends on the installed files and on Python's version
of Unicode.
"""
import glob
import os
import random
import sys
import unicodedata

SCRIPTS = {
    "LATIN": (0x41, 0x24F), "GREEK": (0x370, 0x3FF), "CYRILLIC": (0x400, 0x52F), "ARMENIAN": (0x531, 0x58F),
    "HEBREW": (0x591, 0x5F4), "ARABIC": (0x600, 0x6FF), "SYRIAC": (0x700, 0x74F), "THAANA": (0x780, 0x7B1),
    "DEVANAGARI": (0x900, 0x97F), "BENGALI": (0x980, 0x9FE), "GURMUKHI": (0xA01, 0xA76), "GUJARATI": (0xA81, 0xAFF),
    "TAMIL": (0xB82, 0xBFA), "TELUGU": (0xC00, 0xC7F), "KANNADA": (0xC80, 0xCF2), "MALAYALAM": (0xD00, 0xD7F),
    "SINHALA": (0xD81, 0xDF4), "THAI": (0xE01, 0xE5B), "LAO": (0xE81, 0xEDF), "TIBETAN": (0xF00, 0xFDA),
    "MYANMAR": (0x1000, 0x109F), "GEORGIAN": (0x10A0, 0x10FF), "ETHIOPIC": (0x1200, 0x139F), "KHMER": (0x1780, 0x17F9),
    "HANGUL": (0xAC00, 0xD7A3), "JAMO": (0x1100, 0x11FF), "KANA": (0x3041, 0x30FF), "CJK": (0x4E00, 0x9FFF),
    "MATHEMATICAL": (0x1D400, 0x1D7FF), "CUNEIFORM": (0x12000, 0x12399),
}
BLANKS = [" ", " ", " ", " ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "\u200b", "\x85", "\u1680",
          "\u180e"]
SIGNS = ".,;:!?()[]{}\"'`-_/\\|<>@#$%^&*+=~"
MARKS = [chr(c) for c in range(0x300, 0x370)] + list("\u05bc\u0651\u093c\u094d\u0e48\u3099\u20e3\u0483")
SAID = ["it's", "IT'S", "we'Re", "I'LL", "don't", "DON'T", "they've", "i'm", "he'd", "'s", "'\u017f", "''", "o'clock",
        "1'st", "x 's", "'RE", "'Ll", "'\u017ft"]


def letters_of(first, last):
    return [chr(c) for c in range(first, last + 1) if unicodedata.category(chr(c)) != "Cn"]


def sentences(rng, bytes_wanted):
    pools = [letters_of(*r) for r in SCRIPTS.values()]
    while bytes_wanted > 0:
        pool, words = rng.choice(pools), []
        for _ in range(rng.randint(3, 40)):
            words.append("".join(rng.choices(pool, k=rng.randint(1, 12))))
            words.append(rng.choice(BLANKS if rng.random() < 0.95 else SIGNS))
            if rng.random() < 0.05:
                words.append(rng.choice(SAID))
            if rng.random() < 0.05:
                words.append(str(rng.randrange(10 ** rng.randint(1, 12))))
        text = "".join(words) + rng.choice(["\n", ".\n\n", "!\r\n", "\n  ", " "])
        bytes_wanted -= len(text.encode())
        yield text


def emoji(rng, count):
    bases = letters_of(0x1F300, 0x1F64F) + letters_of(0x1F680, 0x1F6FC) + letters_of(0x2600, 0x27BF)
    extra = ["\ufe0f", "\u200d", "\u20e3", *map(chr, range(0x1F3FB, 0x1F400)), "\U0001F1E9\U0001F1EA", ""]
    return "".join(rng.choice(bases) + rng.choice(extra) + rng.choice(["", "", " "]) for _ in range(count))


def marked(rng, count):
    out = []
    for _ in range(count):
        out.append(rng.choice("aeiouAEIOUnNсиЁ가ᄀアかकকก \n") + "".join(rng.choices(MARKS, k=rng.randint(0, 5))))
    return "".join(out)


def noise(rng, count):
    pool = [chr(c) for c in range(0x250)] + list("\u200e\u202e\ufeff\ufffd\ufffe\U0010FFFF\ue000\U000E0001")
    return "".join(rng.choices(pool, k=count))


def runs(rng, count):
    out = []
    for _ in range(count):
        out.append(rng.choice(" \t\n\r\u00a0aZé日़1٣.'-=") * rng.choice([1, 2, 3, 7, 31, 200, 3000]))
        out.append(rng.choice(["", "x", " x", ".", "\n", "\r\n"]))
    return "".join(out)


def every_character():
    named = (chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co"))
    out = []
    for i, c in enumerate(named):
        out.append(c if i % 3 else c + " " + c + "\u0301x")
    return "".join(out)


def installed(rng, bytes_wanted):
    patterns = ["/usr/include/c++/*/*", "/usr/include/*.h", "/usr/lib/python3*/*.py", "/usr/share/perl/*/*.p[ml]",
                "/usr/share/doc/*/copyright", "/usr/share/i18n/locales/*", "/usr/share/common-licenses/*"]
    files = sorted(f for p in patterns for f in glob.glob(p) if os.path.isfile(f))
    rng.shuffle(files)
    for name in files:
        if bytes_wanted <= 0:
            break
        with open(name, "rb") as f:
            text = f.read(60000).decode("utf-8", "ignore").replace("\0", "")
        if rng.random() < 0.2:
            text = text.replace("\n", "\r\n")
        bytes_wanted -= len(text.encode())
        yield text


def corpus(bytes_wanted, seed=17):
    rng = random.Random(seed)
    parts = [every_character(), marked(rng, bytes_wanted // 100), noise(rng, bytes_wanted // 100),
             emoji(rng, bytes_wanted // 150), runs(rng, 200)]
    left = bytes_wanted - sum(len(p.encode()) for p in parts)
    parts += list(installed(rng, left // 2)) + list(sentences(rng, left // 2))
    rng.shuffle(parts)
    return "".join(parts)


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8", newline="") as f:
        f.write(corpus(int(sys.argv[2]) if len(sys.argv) > 2 else 10_000_000))
