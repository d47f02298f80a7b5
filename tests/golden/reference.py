#!/usr/bin/python3
"""Trains the golden models in float64, with PyTorch's tensors and autograd and without Ringmaster's code.

    RINGMASTER_GOLDEN_DUMP=DIR test_golden
    tests/golden/reference.py DIR [family...]

For each family, reads DIR/<family> (settings, initial weights, batches), writes <family>.json beside this file, and
prints how far Ringmaster's own run, in float32, was from it. Needs PyTorch >= 1.12, NumPy and PyYAML. Formulas are
taken from the papers and models named at each function.
"""

import json
import math
import pathlib
import sys

import numpy
import torch
import torch.nn.functional as F
import yaml

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
HERE = pathlib.Path(__file__).resolve().parent


# --- the model ------------------------------------------------------------------------------------


def normalise(x, w, prefix, m):
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019), biased variance, eps inside the root."""
    gain, bias = w[prefix + ".weight"], w.get(prefix + ".bias")
    if m["norm"] == "layer":
        return F.layer_norm(x, x.shape[-1:], gain, bias, m["norm_eps"])
    return rms_norm(x, gain, m["norm_eps"])


def rms_norm(x, gain, eps):
    return gain * x / torch.sqrt(torch.mean(x * x, dim=-1, keepdim=True) + eps)


def project(x, w, prefix):
    return F.linear(x, w[prefix + ".weight"], w.get(prefix + ".bias"))


def wavelengths(m):
    """Returns the wavelength in tokens of each rotated pair of channels (RoFormer: Su et al. 2021; scaling: Chen et al.
    2023, Llama 3.1)."""
    rope, half = m["rope"], m["head_dim"] // 2
    out = []
    for i in range(half):
        length = 2 * math.pi * rope["theta"] ** (i / half)
        if rope["scaling"] == "linear":
            length *= rope["factor"]
        elif rope["scaling"] == "llama3":
            long, short = (rope["original_context"] / rope[k] for k in ("low_freq_factor", "high_freq_factor"))
            if length > long:
                length *= rope["factor"]
            elif length > short:
                # Llama interpolates frequencies, linearly in the number of turns within the original context.
                part = (rope["original_context"] / length - rope["low_freq_factor"]) / (
                    rope["high_freq_factor"] - rope["low_freq_factor"])
                length = 1 / ((1 - part) / (rope["factor"] * length) + part / length)
        out.append(length)
    return torch.tensor(out)


def rotate(x, m):
    """x [rows, heads, time, head_dim]; channels i and i + head_dim / 2 are one complex number."""
    angles = 2 * math.pi * torch.arange(x.shape[2])[:, None] / wavelengths(m)
    z = torch.complex(*x.chunk(2, dim=-1)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([z.real, z.imag], dim=-1)


def attend(x, w, prefix, m):
    """Vaswani et al. 2017, section 3.2; queries of one group share keys and values (Ainslie et al. 2023)."""
    rows, time, _ = x.shape
    q, k, v = (project(x, w, prefix + "." + name).view(rows, time, -1, m["head_dim"]).transpose(1, 2)
               for name in ("wq", "wk", "wv"))
    if m["qk_norm"]:
        q = rms_norm(q, w[prefix + ".q_norm.weight"], m["norm_eps"])
        k = rms_norm(k, w[prefix + ".k_norm.weight"], m["norm_eps"])
    if m["positions"] == "rope":
        q, k = rotate(q, m), rotate(k, m)
    group = m["heads"] // m["kv_heads"]
    k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
    scores = q @ k.transpose(2, 3) / math.sqrt(m["head_dim"])
    future = torch.ones(time, time, dtype=torch.bool).triu(1)
    y = torch.softmax(scores.masked_fill(future, -math.inf), dim=-1) @ v
    y = y.transpose(1, 2).reshape(rows, time, -1)
    if m["norm_place"] == "sub":
        y = normalise(y, w, prefix + ".sub_norm", m)
    return project(y, w, prefix + ".wo")


def feed_forward(x, w, prefix, m):
    up = project(x, w, prefix + ".up")
    if m["mlp"] == "swiglu":  # Shazeer 2020
        h = F.silu(project(x, w, prefix + ".gate")) * up
    elif m["mlp"] == "gelu_tanh":  # Hendrycks and Gimpel 2016
        h = F.gelu(up, approximate="tanh")
    else:  # relu2: So et al. 2021
        h = torch.relu(up) ** 2
    if m["norm_place"] == "sub":
        h = normalise(h, w, prefix + ".sub_norm", m)
    return project(h, w, prefix + ".down")


def logits(ids, w, m):
    x = w["embedding.tokens.weight"][ids]
    if m["positions"] == "learned":
        x = x + w["embedding.positions.weight"][:ids.shape[1]]
    for i in range(m["layers"]):
        block = f"blocks.{i}."
        x = x + attend(normalise(x, w, block + "attention_norm", m), w, block + "attention", m)
        x = x + feed_forward(normalise(x, w, block + "mlp_norm", m), w, block + "mlp", m)
    x = normalise(x, w, "final_norm", m)
    return x @ w["embedding.tokens.weight" if m["tied_embeddings"] else "head.weight"].T


def loss_of(ids, targets, w, m, z_weight):
    """Mean cross-entropy, and z-loss as in PaLM (Chowdhery et al. 2022, section 5): z_weight * log(Z)^2 per token."""
    z = logits(ids, w, m)
    return F.cross_entropy(z.flatten(0, 1), targets.flatten()) + z_weight * torch.mean(torch.logsumexp(z, -1) ** 2)


# --- the training ---------------------------------------------------------------------------------


def rate_at(step, steps, peak, s):
    """Linear warm-up, then half a cosine (Loshchilov and Hutter 2017)."""
    if step < s["warmup_steps"]:
        return peak * (step + 1) / s["warmup_steps"]
    low = peak * s["final_lr"]
    return low + (peak - low) * math.cos(math.pi / 2 * (step - s["warmup_steps"]) / (steps - s["warmup_steps"])) ** 2


class AdamW:
    """Loshchilov and Hutter 2019, algorithm 2. As in PyTorch, decay is multiplied by the rate. Decays matrices only."""

    def __init__(self, weights, o):
        self.weights, self.o, self.t = weights, o, 0
        self.m = {name: torch.zeros_like(p) for name, p in weights.items()}
        self.v = {name: torch.zeros_like(p) for name, p in weights.items()}

    def step(self, grads, rate):
        o, self.t = self.o, self.t + 1
        for name, p in self.weights.items():
            m = self.m[name] = o["beta1"] * self.m[name] + (1 - o["beta1"]) * grads[name]
            v = self.v[name] = o["beta2"] * self.v[name] + (1 - o["beta2"]) * grads[name] ** 2
            m_hat, v_hat = m / (1 - o["beta1"] ** self.t), v / (1 - o["beta2"] ** self.t)
            decay = o["weight_decay"] if p.dim() == 2 else 0
            with torch.no_grad():
                p -= rate * (m_hat / (torch.sqrt(v_hat) + o["eps"]) + decay * p)


def train(config, weights, inputs, targets):
    m, t, o = config["model"], config["train"], config["optimizer"]
    optimizer = AdamW(weights, o)
    out = {"loss": [], "norm": []}
    for step in range(t["steps"]):
        loss = loss_of(inputs[step], targets[step], weights, m, t["z_loss"])
        grads = dict(zip(weights, torch.autograd.grad(loss, list(weights.values()))))
        norm = math.sqrt(sum(float((g * g).sum()) for g in grads.values()))
        clip = min(1.0, o["clip"] / norm)  # Pascanu et al. 2013
        rate = rate_at(step, t["steps"], o["lr"], config["schedule"])
        optimizer.step({name: clip * g for name, g in grads.items()}, rate)
        out["loss"].append(loss.item())
        out["norm"].append(norm)
    return out


# --- files ----------------------------------------------------------------------------------------


def shape_of(name, m):
    """Returns the rows and columns of a parameter according to the settings: [out, in] for matrices."""
    part, kind = name.split(".")[-2:]
    q, kv, width, hidden = m["heads"] * m["head_dim"], m["kv_heads"] * m["head_dim"], m["width"], m["mlp_width"]
    inner = q if ".attention." in name else hidden
    table = {"tokens": (m["vocab_size"], width), "positions": (m["context"], width), "head": (m["vocab_size"], width),
             "wq": (q, width), "wk": (kv, width), "wv": (kv, width), "wo": (width, q),
             "gate": (hidden, width), "up": (hidden, width), "down": (width, hidden),
             "attention_norm": (width,), "mlp_norm": (width,), "final_norm": (width,), "sub_norm": (inner,),
             "q_norm": (m["head_dim"],), "k_norm": (m["head_dim"],)}
    return table[part][:1] if kind == "bias" else table[part]


def read(file, dtype, shape):
    return torch.from_numpy(numpy.fromfile(file, dtype).reshape(shape))


def read_weights(folder, names, m):
    return {name: read(folder / (name + ".f32"), "<f4", shape_of(name, m)).double() for name in names}


def checksums(weights):
    out = {}
    for name, p in weights.items():
        flat = p.flatten()
        wave = torch.cos(torch.arange(flat.numel(), dtype=torch.float64))
        sums = {"sum": flat, "squares": flat * flat, "wave": flat * wave}
        out[name] = {key: x.sum().item() for key, x in sums.items()}
    return out


def mark(*parts):
    tokens = numpy.concatenate([p.numpy().ravel() for p in parts]).astype(numpy.int64)
    return int(((numpy.arange(tokens.size) % 1009 + 1) * tokens).sum())


def show_differences(family, out, index, weights, measured):
    """Compares Ringmaster's float32 run with this one."""
    clip = yaml.safe_load(index["config"])["optimizer"]["clip"]
    clipped = sum(n > clip for n in out["norm"])
    if clipped in (0, len(out["norm"])):
        sys.exit(f"{family}: {clipped} of {len(out['norm'])} steps are clipped; choose optimizer.clip so that some are")
    worst = {key: max(abs(a / b - 1) for a, b in zip(index[key], out[key])) for key in ("loss", "norm")}
    first, last = out["loss"][0], out["loss"][-1]
    print(f"{family}: loss {first:.4f} -> {last:.4f}, {clipped} of {len(out['norm'])} steps clipped")
    print(f"  largest relative difference of a loss {worst['loss']:.1e}, of a norm {worst['norm']:.1e}")
    apart = {}  # relative to the tensor: norm of the difference, largest error of a checksum
    for name, p in weights.items():
        theirs, ours = (checksums({name: x})[name] for x in (measured[name], p))
        root = math.sqrt(ours["squares"]) or 1.0
        sums = max(abs(theirs[k] - ours[k]) / (root**2 if k == "squares" else root) for k in ours)
        apart[name] = (((p - measured[name]).norm() / p.norm()).item(), sums, (p - measured[name]).abs().max().item())
    idle = {name: apart.pop(name) for name in weights if weights[name].abs().max() < 1e-9}
    whole, sums = (max((a[i], name) for name, a in apart.items()) for i in (0, 1))
    print(f"  of a final tensor {whole[0]:.1e} ({whole[1]}), of a checksum of one {sums[0]:.1e} ({sums[1]})")
    for name, a in idle.items():
        print(f"  {name} has no effect and should stay 0: at most {a[2]:.1e}")


def main(folder, families):
    for family in families or sorted(p.name for p in folder.iterdir() if (p / "index.json").exists()):
        source = folder / family
        index = json.loads((source / "index.json").read_text())
        config = yaml.safe_load(index["config"])
        m, t = config["model"], config["train"]
        shape = (t["steps"], t["batch_size"], m["context"])
        inputs, targets = (read(source / (name + ".i32"), "<i4", shape).long() for name in ("inputs", "targets"))
        weights = read_weights(source / "initial", index["parameters"], m)
        out = {"config": index["config"], "tokens": mark(inputs, targets), "initial": checksums(weights)}
        for p in weights.values():
            p.requires_grad_()
        out.update(train(config, weights, inputs, targets))
        weights = {name: p.detach() for name, p in weights.items()}
        out["final"] = checksums(weights)
        (HERE / (family + ".json")).write_text(json.dumps(out, indent=1) + "\n")
        show_differences(family, out, index, weights, read_weights(source / "final", index["parameters"], m))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
