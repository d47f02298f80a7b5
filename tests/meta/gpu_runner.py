#!/usr/bin/env python3
"""Runs scripts/gpu_tests.py on a fake test program: it must report tests that fail, crash and hang.

gpu_runner.py GPU_TESTS_PY
"""
import json
import pathlib
import subprocess
import sys
import tempfile

# A program that prints what a GoogleTest program prints for the tests in its filter.
PRETENDER = r"""#!/bin/bash
if [ "$1" = --gtest_list_tests ]; then
  case "$2" in *GpuDist*-*) exit 3;; *-GpuDist*) ;; *) echo GpuDistA.; echo "  Pair"; exit;; esac
  printf 'GpuA.\n  Good\n  Blind\n'
  printf '  Bad\n  Other\n  Crash\n  DISABLED_Never\nAll/GpuB.\n  Skip/0  # GetParam() = 5\n  Hang/1\n'
  exit
fi
filter="${2#--gtest_filter=}"
code=0
for test in ${filter//:/ }; do
  echo "[ RUN      ] $test"
  case "$test" in
    *.Other) echo "[ RUN      ] GpuA.DISABLED_Never"; echo "[       OK ] $test (1500 ms)";;
    *.Bad) echo "x.cpp:1: Failure"; echo "[  FAILED  ] $test, where GetParam() = 1 (20 ms)"; code=1;;
    *.Crash) echo "last words"; kill -SEGV $$;;
    *.Hang/*) sleep 600;;
    *.Blind) echo "z.cpp:3: Skipped"; echo "no GPU"; echo "[  SKIPPED ] $test (0 ms)";;
    *.Skip/*) echo "y.cpp:2: Skipped"; echo "no such library"; echo "[  SKIPPED ] $test (0 ms)";;
    *) echo "[       OK ] $test (1500 ms)";;
  esac
done
exit $code
"""
EXPECTED = {
    "GpuA.Good": "passed",
    "GpuA.Blind": "skipped",
    "GpuA.Bad": "failed",
    "GpuA.Other": "passed",
    "GpuA.Crash": "failed",
    "All/GpuB.Skip/0": "skipped",
    "All/GpuB.Hang/1": "failed",
}


def main():
    with tempfile.TemporaryDirectory() as scratch:
        program = pathlib.Path(scratch) / "tests/test_pretender"
        program.parent.mkdir()
        program.write_text(PRETENDER)
        program.chmod(0o755)
        out = pathlib.Path(scratch) / "out"
        command = [sys.executable, sys.argv[1], "run", scratch, "--timeout", "8", "--jobs", "1", "--out", out]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        results = json.loads((out / "results.json").read_text())
        assert {r["test"]: r["outcome"] for r in results} == EXPECTED, done.stdout
        assert done.returncode == 1, done.stdout
        said = {r["test"]: r["output"] for r in results}
        assert "last words" in said["GpuA.Crash"] and "signal 11" in said["GpuA.Crash"], said
        assert "did not end within 8 s" in said["All/GpuB.Hang/1"], said
        for part in ("skipped, 1: no such library", "| pretender GpuA |", "3 tests failed, 2 passed, 1 found no GPU"):
            assert part in done.stdout, done.stdout
        good = subprocess.run([*command[:-2], "--filter", "*Good"], stdout=subprocess.PIPE, text=True)
        assert good.returncode == 0, good.stdout
        blind = subprocess.run([*command[:-2], "--filter", "GpuA.[GB][ol]*"], stdout=subprocess.PIPE, text=True)
        assert blind.returncode == 1, "exit code 0 although a test found no GPU: " + blind.stdout
        none = subprocess.run([*command[:-2], "--filter", "*Skip*"], stdout=subprocess.PIPE, text=True)
        assert none.returncode == 1, "exit code 0 although no test passed: " + none.stdout


main()
