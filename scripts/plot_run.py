#!/usr/bin/env python3
"""Draws the losses and the throughput of a run as SVG, from its metrics.jsonl. Needs no packages.

    scripts/plot_run.py runs/NAME [--output run.svg] [--title TEXT]

A loss that is not finite interrupts its line.
"""
import argparse
import json
import math
import pathlib
import sys
from html import escape

WIDTH, LEFT, RIGHT, TOP, GAP, BOTTOM = 860, 64, 20, 46, 44, 40
LOSS_HEIGHT, SPEED_HEIGHT = 230, 90
TRAIN, VALIDATION, SPEED = "#7aa5d8", "#c0392b", "#2e8b57"


def read(path):
    """Lists of (step, value): training loss, validation loss, tokens per second."""
    train, validation, speed = [], [], []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        loss = record.get("loss")
        point = (record["step"], math.nan if loss is None else loss)
        if record["group"] == "validation":
            validation.append(point)
        elif record["group"] == "train":
            train.append(point)
            speed.append((record["step"], record["tokens_per_second"]))
    if not train:
        sys.exit(f"plot_run.py: {path} contains no records of training")
    return train, validation, speed


def ticks(low, high, count=5):
    """Round numbers between low and high, at most count + 1."""
    step = 10 ** math.floor(math.log10((high - low) / count))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= count)
    return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


class Panel:
    """A plot in a box: steps to the right, values upward."""

    def __init__(self, top, height, steps, low, high):
        self.top, self.height, self.steps, self.low, self.high = top, height, steps, low, high

    def x(self, step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / self.steps

    def y(self, value):
        return self.top + self.height * (self.high - value) / (self.high - self.low)

    def frame(self, label, text):
        middle = self.top + self.height / 2
        out = [f'<text x="14" y="{middle}" transform="rotate(-90 14 {middle})" text-anchor="middle">{label}</text>']
        for value in ticks(self.low, self.high, 5 if self.height > 120 else 3):
            y = self.y(value)
            out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e3e3e3"/>')
            out.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text(value)}</text>')
        for step in ticks(0, self.steps, 8):
            x, bottom = self.x(step), self.top + self.height
            out.append(f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 4}" stroke="#777"/>')
            out.append(f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{step}</text>')
        return out

    def curve(self, points, color, width):
        """One line for each stretch of finite values."""
        out, stretch = [], []
        for step, value in [*points, (0, math.nan)]:
            if math.isfinite(value):
                stretch.append(f"{self.x(step):.1f},{self.y(min(max(value, self.low), self.high)):.1f}")
            elif stretch:
                out.append(f'<polyline points="{" ".join(stretch)}" fill="none" stroke="{color}" '
                           f'stroke-width="{width}" stroke-linejoin="round"/>')
                stretch = []
        return out

    def dots(self, points, color):
        return [f'<circle cx="{self.x(step):.1f}" cy="{self.y(value):.1f}" r="3.5" fill="{color}"/>'
                f'<text x="{self.x(step):.1f}" y="{self.y(value) - 8:.1f}" text-anchor="end" fill="{color}">'
                f'{value:.2f}</text>' for step, value in points if math.isfinite(value)]


def draw(train, validation, speed, title):
    losses = [v for _, v in train + validation if math.isfinite(v)]
    if not losses:
        sys.exit("plot_run.py: this run has no finite loss")
    steps = max(train[-1][0], 1)
    span = max(max(losses) - min(losses), 1e-3)
    loss = Panel(TOP, LOSS_HEIGHT, steps, min(losses) - 0.05 * span, max(losses) + 0.05 * span)
    rate = Panel(TOP + LOSS_HEIGHT + GAP, SPEED_HEIGHT, steps, 0, 1.15 * max(v for _, v in speed))
    height = TOP + LOSS_HEIGHT + GAP + SPEED_HEIGHT + BOTTOM
    legend = ((TRAIN, "training loss"), (VALIDATION, "validation loss"), (SPEED, "tokens per second"))
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12" '
        'fill="#333">',
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="15">{escape(title)}</text>',
        *(f'<text x="{WIDTH - RIGHT - 340 + 115 * i}" y="24" fill="{color}">{name}</text>'
          for i, (color, name) in enumerate(legend)),
        *loss.frame("loss, nats per token", lambda v: f"{v:g}"),
        *loss.curve(train, TRAIN, 1.2),
        *loss.curve(validation, VALIDATION, 1.8),
        *loss.dots(validation, VALIDATION),
        *rate.frame("tokens / s", lambda v: f"{v / 1000:g}k" if v >= 1000 else f"{v:g}"),
        *rate.curve(speed, SPEED, 1.5),
        f'<text x="{LEFT + (WIDTH - LEFT - RIGHT) / 2}" y="{height - 6}" text-anchor="middle">step</text>',
        "</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=pathlib.Path, help="directory of a run, or a metrics.jsonl")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("run.svg"))
    parser.add_argument("--title", help="title of the plot; default: the name of the run's directory")
    args = parser.parse_args()
    path = args.run / "metrics.jsonl" if args.run.is_dir() else args.run
    try:
        args.output.write_text(draw(*read(path), args.title or path.resolve().parent.name))
    except (OSError, json.JSONDecodeError, KeyError) as error:
        sys.exit(f"plot_run.py: {path}: {error}")
    print(f"{args.output}: {path}")


if __name__ == "__main__":
    main()
