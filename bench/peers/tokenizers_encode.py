#!/usr/bin/env python3
"""Encoding on one thread, ours beside Hugging Face's tokenizers, in megabytes per second of the CPU's time.

bench/peers/tokenizers_encode.py RINGMASTER TOKENIZER_JSON TEXT [TEXT...]

Theirs gets the text as pieces of 512 KB through encode_batch_fast, which leaves offsets out. Ours is `data prepare
--threads 1`, with reading and writing, less what the same command takes for a text of one byte: reading the
tokenizer.json. Best of three, in turn.
"""
import os
import resource
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import tokenizers

PIECE = 1 << 19


def theirs(tokenizer, text):
    start = time.process_time()
    for at in range(0, len(text), PIECE):
        tokenizer.encode_batch_fast([text[at:at + PIECE]], add_special_tokens=False)
    return time.process_time() - start


def ours(program, tokenizer, text, folder):
    def spent():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    start = spent()
    subprocess.run([program, "data", "prepare", "--input", text, "--as-text", "--tokenizer", tokenizer, "--output",
                    os.path.join(folder, "corpus.h5"), "--force", "--threads", "1", "--validation-fraction", "0"],
                   check=True, capture_output=True)
    return spent() - start


def main():
    program, file, texts = sys.argv[1], sys.argv[2], sys.argv[3:]
    tokenizer = tokenizers.Tokenizer.from_file(file)
    with tempfile.TemporaryDirectory(prefix="ringmaster-tokenizers-") as folder:
        short = os.path.join(folder, "short.txt")
        with open(short, "w") as f:
            f.write("a")
        reading = min(ours(program, file, short, folder) for _ in range(3))
        print("%s: read by ours in %.2f s (tokenizers %s)" % (file, reading, tokenizers.__version__))
        for name in texts:
            with open(name, encoding="utf-8", errors="ignore", newline="") as f:
                text = f.read()
            size = os.path.getsize(name) / 1e6
            pairs = [(ours(program, file, name, folder) - reading, theirs(tokenizer, text)) for _ in range(3)]
            mine, other = (size / min(times) for times in zip(*pairs))
            print("%s: %.1f MB: ours %.1f MB/s, tokenizers %.1f MB/s" % (name, size, mine, other), flush=True)


if __name__ == "__main__":
    main()
