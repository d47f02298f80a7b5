"""The shapes of bench/shapes/*.yaml, for the peers and the table of scripts/bench_gpu.sh. Needs PyYAML."""
import dataclasses
import pathlib

import yaml

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "shapes"


@dataclasses.dataclass
class Shape:
    name: str
    vocab: int
    context: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    mlp_width: int
    batch: int
    learning_rate: float

    @property
    def head_dim(self):
        return self.width // self.heads

    @property
    def tokens(self):
        return self.batch * self.context

    def flops_per_token(self):
        """6 per matrix weight (head included, embedding not) and causal attention, of which half is computed."""
        attention = (2 * self.heads + 2 * self.kv_heads) * self.head_dim * self.width
        matrices = self.layers * (attention + 3 * self.width * self.mlp_width) + self.vocab * self.width
        return 6 * matrices + 6 * self.layers * self.heads * self.head_dim * self.context


def names():
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name):
    path = FOLDER / f"{name}.yaml"
    if not path.exists():
        raise SystemExit(f"no such shape: {name}; there are {', '.join(names())}")
    with open(path, encoding="utf-8") as file:
        settings = yaml.safe_load(file)
    model = settings["model"]
    expected = {"mlp": "swiglu", "norm": "rms", "positions": "rope", "tied_embeddings": False}
    for key, value in expected.items():
        if model.get(key) != value:
            raise SystemExit(f"{path}: model.{key} is {model.get(key)}, the peers have {value} only")
    return Shape(
        name=name,
        vocab=model["vocab_size"],
        context=model["context"],
        layers=model["layers"],
        width=model["width"],
        heads=model["heads"],
        kv_heads=model["kv_heads"],
        mlp_width=model["mlp_width"],
        batch=settings["train"]["batch_size"],
        learning_rate=float(settings["optimizer"]["lr"]),  # PyYAML reads 1e-4 as text
    )
