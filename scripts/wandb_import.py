#!/usr/bin/env python3
"""Uploads the metrics.jsonl of runs to Weights & Biases. Needs the package wandb.

    scripts/wandb_import.py runs/A runs/B [--project ringmaster]

WANDB_MODE=offline writes only to ./wandb. Values that are not finite are left out.
"""
import argparse
import json
import pathlib
import sys


def records(path):
    """Step and values, as group/name, of each whole line."""
    for line in path.read_text().split("\n")[:-1]:
        record = json.loads(line)
        step, group = record.pop("step"), record.pop("group")
        yield step, {f"{group}/{name}": value for name, value in record.items() if value is not None}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=pathlib.Path, help="directories of runs")
    parser.add_argument("--project", default="ringmaster", help="project at Weights & Biases; default: %(default)s")
    args = parser.parse_args()
    try:
        import wandb
    except ImportError:
        sys.exit("wandb_import.py: the package wandb is not installed. Install it with: python3 -m pip install wandb")
    for path in args.runs:
        try:
            rows = sorted(records(path / "metrics.jsonl"), key=lambda row: row[0])  # W&B takes ascending steps alone
            settings = {"config.yaml": (path / "config.yaml").read_text()}
        except (OSError, ValueError, KeyError) as error:
            sys.exit(f"wandb_import.py: {path}: {error}")
        run = wandb.init(project=args.project, name=path.resolve().name, config=settings)
        for step, values in rows:
            run.log(values, step=step)
        run.finish()


if __name__ == "__main__":
    main()
