#!/usr/bin/env python3
"""How fast Hugging Face's tokenizers encodes a text on one thread, in megabytes per second of the CPU's time.

RAYON_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false bench/peers/tokenizers_encode.py TOKENIZER_JSON TEXT [TEXT...]

The text goes in as pieces of 512 KB, to encode_batch_fast, which leaves offsets out. Ours on the same text:
`data prepare --threads 1`, whose time is that of the whole command, with reading and writing.
"""
import sys
import time

import tokenizers

PIECE = 1 << 19

tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
for name in sys.argv[2:]:
    with open(name, encoding="utf-8", errors="ignore", newline="") as f:
        text = f.read()
    size, best, tokens = len(text.encode()), float("inf"), 0
    for _ in range(3):
        start, tokens = time.process_time(), 0
        for at in range(0, len(text), PIECE):
            tokens += len(tokenizer.encode_batch_fast([text[at:at + PIECE]], add_special_tokens=False)[0].ids)
        best = min(best, time.process_time() - start)
    print("%s: %.1f MB, %d tokens, %.1f MB/s (tokenizers %s)" % (name, size / 1e6, tokens, size / 1e6 / best,
                                                                 tokenizers.__version__))
