#!/usr/bin/env python3
"""Measures how fast `ringmaster import` reads published weights, and its memory. Run by hand.

read_speed.py RINGMASTER FOLDER [--layers N] [--output FOLDER]: writes random safetensors of Llama 3.1 8B's shape, with
N of its 32 layers, into FOLDER unless it exists, reads them from the disk past the page cache, and imports them with an
empty page cache. With --output on a file system in memory (/dev/shm), only reading is measured.
"""

import argparse
import json
import os
import resource
import subprocess
import threading
import time

WIDTH, INNER, VOCABULARY, KEYS = 4096, 14336, 128256, 1024
BLOCK = 16 << 20


def shapes(layers):
    all = {"model.embed_tokens": (VOCABULARY, WIDTH), "model.norm": (WIDTH,), "lm_head": (VOCABULARY, WIDTH)}
    block = {"input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,), "self_attn.q_proj": (WIDTH, WIDTH),
             "self_attn.k_proj": (KEYS, WIDTH), "self_attn.v_proj": (KEYS, WIDTH), "self_attn.o_proj": (WIDTH, WIDTH),
             "mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH), "mlp.down_proj": (WIDTH, INNER)}
    for i in range(layers):
        all.update({"model.layers.%d.%s" % (i, name): shape for name, shape in block.items()})
    return all


def write(folder, layers):
    """Writes finite bf16 values: one block of noise, repeated."""
    noise = bytearray(os.urandom(BLOCK))
    noise[1::2] = bytes(b & 0xBF for b in noise[1::2])  # the highest bit of the exponent is 0
    header, at = {}, 0
    for name, shape in shapes(layers).items():
        size = 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name + ".weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    os.makedirs(folder)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for begin in range(0, at, BLOCK):
            f.write(noise[:min(BLOCK, at - begin)])
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=VOCABULARY, hidden_size=WIDTH,
                       intermediate_size=INNER, num_hidden_layers=layers, num_attention_heads=32,
                       num_key_value_heads=8, max_position_embeddings=8192, rms_norm_eps=1e-5, rope_theta=5e5,
                       tie_word_embeddings=False), f)


def forget(file):
    with open(file, "rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk_speed(file):
    """Returns the bytes per second of reads past the page cache, two at a time."""
    size, begin, waiting = os.path.getsize(file), time.time(), []
    for half in range(2):
        arguments = ["dd", "if=" + file, "of=/dev/null", "bs=16M", "iflag=direct", "status=none",
                     "skip=%d" % (half * (size // BLOCK // 2)), "count=%d" % (size // BLOCK // 2)]
        waiting.append(subprocess.Popen(arguments))
    for process in waiting:
        process.wait()
    return size / (time.time() - begin)


class Watch(threading.Thread):
    """Watches a process: its own memory, and when it had read `wanted` bytes."""

    def __init__(self, process, wanted):
        super().__init__()
        self.process, self.wanted, self.memory, self.read_after, self.begin = process, wanted, 0, None, time.time()

    def run(self):
        while self.process.poll() is None:
            try:
                with open("/proc/%d/status" % self.process.pid) as f:
                    self.memory = max([self.memory] + [int(line.split()[1]) for line in f if "RssAnon" in line])
                with open("/proc/%d/io" % self.process.pid) as f:
                    read = next(int(line.split()[1]) for line in f if line.startswith("read_bytes"))
            except OSError:
                break
            if read >= self.wanted and not self.read_after:
                self.read_after = time.time() - self.begin
            time.sleep(0.02)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ringmaster")
    parser.add_argument("folder")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--output", required=True)
    a = parser.parse_args()
    if not os.path.exists(a.folder):
        write(a.folder, a.layers)
    file = os.path.join(a.folder, "model.safetensors")
    forget(file)
    disk = disk_speed(file)
    forget(file)
    process = subprocess.Popen([a.ringmaster, "import", a.folder, "--output", a.output])
    watch = Watch(process, os.path.getsize(file) - BLOCK)
    watch.start()
    watch.join()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print("%.2f GB; the disk, read directly: %.0f MB/s; load %.1f" %
          (os.path.getsize(file) / 1e9, disk / 1e6, os.getloadavg()[0]))
    print("import had read all after %.1f s: %.0f MB/s, %.0f %% of the disk" %
          (watch.read_after, os.path.getsize(file) / watch.read_after / 1e6,
           100 * os.path.getsize(file) / watch.read_after / disk))
    print("its own memory was at most %.0f MiB; CPU time %.1f s user, %.1f s system, dd's included" %
          (watch.memory / 1024, used.ru_utime, used.ru_stime))


if __name__ == "__main__":
    main()
