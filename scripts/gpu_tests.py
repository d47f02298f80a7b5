#!/usr/bin/env python3
"""Runs the tests that need GPUs, from a build folder or, on a machine without a compiler, from a package.

    scripts/gpu_tests.py pack [--build build/release] [--output build/gpu_tests.tar.xz]
    scripts/gpu_tests.py run [PACKAGE] [--gpus 1] [--jobs N] [--filter PATTERN] [--timeout SECONDS] [--out FOLDER]
                             [--markdown FILE]

pack writes an archive of the test programs and the ringmaster program, both stripped, the libraries that they need
except CUDA's, and the files that the tests read. PACKAGE is that archive, a folder it was unpacked into, or a build
folder (default build/release).

--gpus 1 runs the suites Gpu* except GpuDist*, which need several GPUs; --gpus 2 runs GpuDist* with two GPUs. --jobs
processes run at once (default: one per core, or one per group of GPUs for GpuDist*). --filter selects tests, such
as '*GpuAttention*'. A test that has not ended after --timeout seconds (120, or 600 with several GPUs) fails. --out is
the folder for results.json, junit.xml and failures.txt, --markdown the file for a page of docs/measured. Uses the CUDA
libraries of the Python packages nvidia-* if this Python has them, otherwise the system's. Exits with 1 if a test failed
or found no GPU, or if no test passed.
"""
import argparse
import collections
import datetime
import fnmatch
import json
import lzma
import os
import pathlib
import queue
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import threading
import time
from xml.sax.saxutils import quoteattr

ROOT = pathlib.Path(__file__).resolve().parent.parent
ONE_GPU = "Gpu*:*/Gpu*-GpuDist*:*/GpuDist*"
SEVERAL_GPUS = "GpuDist*:*/GpuDist*"
SOURCES = ["configs", "tests/golden"]  # read by tests of GPUs
# Libraries that are not packed because every machine has its own, as in package.sh.
SYSTEM = re.compile(r"^(ld-linux.*|linux-vdso|lib(c|m|mvec|dl|rt|pthread|util|resolv|anl|nsl|nss_.*|cuda))\.so")
# Tests per process: opening the GPU takes half a second per process, but the slowest process bounds the whole run.
BATCH = 8
# Test programs with the slowest tests, which start first.
LONGEST = ["test_kernels", "test_bench", "test_golden", "test_trainer"]


def fail(text):
    sys.exit(f"gpu_tests.py: {text}")


# --- pack -----------------------------------------------------------------------------------------------------------
def output_of(*command, env=None):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout


def tests_of(program, pattern, env=None):
    """Returns the names of the program's tests that match the pattern and are not disabled."""
    names, suite = [], ""
    for line in output_of(program, "--gtest_list_tests", f"--gtest_filter={pattern}", env=env).splitlines():
        name = line.split("#")[0].strip()
        if line.startswith(" "):
            names.append(suite + name)
        elif name.endswith("."):
            suite = name
    return [name for name in names if not re.search(r"(^|[./])DISABLED_", name)]


def libraries_of(program):
    found = {}
    for line in output_of("ldd", program).splitlines():
        name, _, path = (part.strip() for part in line.partition("=>"))
        if "not found" in path:
            fail(f"{program} requires the library {name}, which was not found")
        if path.startswith("/") and not SYSTEM.match(os.path.basename(name)):
            found[name] = path.split(" (")[0]
    return found


def strip(source, target):
    subprocess.run(["strip", "--strip-unneeded", "-o", target, source], check=True)


def stage(build, folder):
    programs = [p for p in sorted((build / "tests").glob("test_*")) if os.access(p, os.X_OK) and p.is_file()]
    wanted = [p for p in programs if tests_of(p, "Gpu*:*/Gpu*")]
    if not wanted:
        fail(f"{build} has no GPU tests. Build it with CUDA first")
    for part in ("tests", "lib"):
        (folder / part).mkdir(parents=True)
    libraries = {}
    for program in [*wanted, build / "ringmaster"]:
        strip(program, folder / program.relative_to(build))
        libraries.update(libraries_of(program))
    for name, path in libraries.items():
        strip(path, folder / "lib" / name)
    for name in output_of("git", "-C", ROOT, "ls-files", *SOURCES).splitlines():
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "source" / name)
    shutil.copy(__file__, folder)
    return len(wanted)


def pack(options):
    build, output = pathlib.Path(options.build).resolve(), pathlib.Path(options.output)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "gpu_tests"
        programs = stage(build, folder)
        # All programs contain the same kernels. A dictionary larger than a program stores the kernels only once.
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 128 << 20}]
        part = output.with_name(output.name + ".part")  # so that an interrupted pack leaves no partial archive
        with lzma.open(part, "wb", filters=filters) as file, tarfile.open(fileobj=file, mode="w|") as archive:
            archive.add(folder, "gpu_tests")
        part.replace(output)
        size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    print(f"{output}: {output.stat().st_size / 2**20:.1f} MiB, {programs} programs, {size / 2**20:.0f} MiB unpacked")


# --- run ------------------------------------------------------------------------------------------------------------
Result = collections.namedtuple("Result", "program test outcome seconds output")


def gpus_here():
    """Returns the GPUs that may be used, as (index, name, driver)."""
    query = ["nvidia-smi", "--query-gpu=index,name,driver_version", "--format=csv,noheader"]
    try:
        rows = [tuple(cell.strip() for cell in row.split(",")) for row in output_of(*query).splitlines()]
    except (OSError, subprocess.CalledProcessError):
        return []
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    return rows if allowed is None else [row for row in rows if row[0] in allowed.split(",")]


def cuda_folders():
    found = []
    for site in sys.path:
        found += sorted(str(folder) for folder in pathlib.Path(site or ".").glob("nvidia/*/lib"))
    return found


class Tests:
    """The test programs in an unpacked package or a build folder."""

    def __init__(self, package, scratch):
        package = pathlib.Path(package).resolve()
        if package.is_file():
            with tarfile.open(package, "r:xz") as archive:
                safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                archive.extractall(scratch, **safe)
            package = pathlib.Path(scratch) / "gpu_tests"
        if not (package / "tests").is_dir():
            fail(f"expected a package of tests or a build folder, got {package}")
        self.folder = package
        packed = (package / "source").is_dir()
        self.env = dict(os.environ)
        folders = ([str(package / "lib")] if packed else []) + cuda_folders()
        before = os.environ.get("LD_LIBRARY_PATH")
        self.env["XDG_CACHE_HOME"] = str(pathlib.Path(scratch) / "cache")  # a store of choices for these tests only
        self.env["LD_LIBRARY_PATH"] = ":".join(folders + ([before] if before else []))
        if packed:
            self.env.update(RING_SOURCE_DIR=str(package / "source"), RING_BINARY=str(package / "ringmaster"))

    def commit(self):
        ringmaster = self.folder / "ringmaster"
        return output_of(ringmaster, "--version", env=self.env).splitlines()[0] if ringmaster.exists() else "unknown"

    def batches(self, pattern, only):
        """Returns a list of (program, test names), slowest programs first."""
        programs = [p for p in sorted((self.folder / "tests").glob("test_*")) if os.access(p, os.X_OK) and p.is_file()]
        programs.sort(key=lambda p: LONGEST.index(p.name) if p.name in LONGEST else len(LONGEST))
        batches = []
        for program in programs:
            names = [name for name in tests_of(program, pattern, self.env) if fnmatch.fnmatchcase(name, only)]
            large = [name for name in names if "GpuBorder." in name]  # 16 GiB each, so no two of them run at once
            names = [name for name in names if name not in large]
            count = -(-len(names) // BATCH)  # neighbours often take equally long, so they go to different processes
            batches += [(program, names[i::count]) for i in range(count)]
            if large:
                batches.append((program, large))
        return batches


class Process:
    """One run of a test program, which yields results as its tests end."""

    LINE = re.compile(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] ([^ ,]+\.[^ ,]+)(?:.*\((\d+) ms\))?$")

    def __init__(self, program, names, env, timeout):
        self.program, self.timeout = program, timeout
        self.left = list(names)
        self.current, self.output, self.since = None, [], time.monotonic()
        command = [program, "--gtest_color=no", "--gtest_filter=" + ":".join(names)]
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        stdin=subprocess.DEVNULL, start_new_session=True)

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def lines(self):
        """Yields lines of output until the program ends or a test takes too long."""
        pipe, rest = self.process.stdout, b""
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while (wait := self.since + self.timeout - time.monotonic()) > 0 and selector.select(wait):
                block = os.read(pipe.fileno(), 65536)
                if not block:
                    if rest:
                        yield rest.decode(errors="replace")
                    return
                *whole, rest = (rest + block).split(b"\n")
                for line in whole:
                    yield line.decode(errors="replace")
        self.output.append(f"the test did not end within {self.timeout:g} s")
        self.kill()

    def results(self):
        for line in self.lines():
            match = self.LINE.search(line)
            if match and match[1] == "RUN" and match[2] in self.left:  # skips the output of nested test programs
                self.current, self.output, self.since = match[2], [], time.monotonic()
            elif match and match[3] is not None and match[2] == self.current:
                yield self.end({"OK": "passed"}.get(match[1], match[1].lower()), int(match[3]) / 1000)
            elif self.current or line.strip():
                self.output.append(line)
        code = self.process.wait()
        self.kill()  # also ends processes that the tests left running
        self.process.stdout.close()
        why = f"signal {-code}" if code < 0 else f"exit code {code}"
        if self.current or self.left:
            self.output.append(f"the program ended with {why} {'in' if self.current else 'before'} this test")
            self.current = self.current or self.left[0]
            yield self.end("failed", time.monotonic() - self.since)
        elif code not in (0, 1):  # 1: a test failed, which was reported
            self.current = "Program.Exit"
            self.output.append(f"the program ended with {why} after its tests")
            yield self.end("failed", time.monotonic() - self.since)

    def end(self, outcome, seconds):
        result = Result(self.program.name, self.current, outcome, seconds, "\n".join(self.output))
        self.left = [name for name in self.left if name != self.current]
        self.current, self.output, self.since = None, [], time.monotonic()
        return result


class Runner:
    def __init__(self, tests, options, groups):
        self.tests, self.timeout = tests, options.timeout or (120 if options.gpus == 1 else 600)
        self.queue, self.results, self.lock = queue.Queue(), [], threading.Lock()
        self.groups = groups
        cores = len(os.sched_getaffinity(0))
        self.jobs = options.jobs or (cores if options.gpus == 1 else len(groups))
        self.threads = max(1, cores // self.jobs)

    def work(self, group):
        env = dict(self.tests.env, CUDA_VISIBLE_DEVICES=",".join(group), RINGMASTER_THREADS=str(self.threads))
        while True:
            try:
                program, names = self.queue.get_nowait()
            except queue.Empty:
                return
            while names:  # tests that did not run because of a crash run in a new process
                process = Process(program, names, env, self.timeout)
                for result in process.results():
                    with self.lock:
                        self.results.append(result)
                        if result.outcome == "failed":
                            print(f"FAILED {result.program[5:]} {result.test} ({result.seconds:.1f} s)", flush=True)
                names = process.left

    def run(self, batches):
        for batch in batches:
            self.queue.put(batch)
        threads = [threading.Thread(target=self.work, args=(self.groups[i % len(self.groups)],))
                   for i in range(self.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.results


# --- reports of a run ---------------------------------------------------------------------------------------------
def suite_of(result):
    """Returns the program's name and the suite's name as in the source."""
    parts = [p for p in result.test.split(".")[0].split("/")]
    named = [p for p in parts if p.startswith("Gpu") and p != "Gpu"]
    return f"{result.program[5:]} {named[0] if named else '/'.join(parts)}"


def count(results, outcome):
    return sum(result.outcome == outcome for result in results)


def rows_of(results):
    suites = collections.defaultdict(list)
    for result in results:
        suites[suite_of(result)].append(result)
    rows = []
    for name, of_suite in sorted(suites.items()):
        numbers = [len(of_suite)] + [count(of_suite, outcome) for outcome in ("passed", "failed", "skipped")]
        rows.append([name, *map(str, numbers), f"{sum(r.seconds for r in of_suite):.1f}"])
    total = [sum(int(row[i]) for row in rows) for i in range(1, 5)]
    rows.append(["all", *map(str, total), f"{sum(r.seconds for r in results):.1f}"])
    return rows


def table(header, rows):
    """Returns a Markdown table that is aligned so that it also reads well in a terminal."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells):
        rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:]))
        return "| " + " | ".join([cells[0].ljust(widths[0]), *rest]) + " |"

    rule = "|" + "|".join(["-" * (widths[0] + 2)] + ["-" * (width + 1) + ":" for width in widths[1:]]) + "|"
    return "\n".join([line(header), rule, *map(line, rows)])


def skip_reasons(results):
    """Counts the skipped tests by their reason."""
    said = collections.Counter()
    for result in results:
        if result.outcome == "skipped":
            lines = [line for line in result.output.splitlines() if line.strip() and not line.endswith(": Skipped")]
            said[lines[0] if lines else "no reason"] += 1
    return said


def summary(results):
    slowest = sorted(results, key=lambda r: -r.seconds)[:20]
    return "\n\n".join(part for part in [
        table(["suite", "tests", "passed", "failed", "skipped", "seconds"], rows_of(results)),
        "\n".join(f"skipped, {n}: {text}" for text, n in skip_reasons(results).most_common()),
        table(["slowest tests", "seconds"], [[f"{r.program[5:]} {r.test}", f"{r.seconds:.1f}"] for r in slowest]),
    ] if part)


def write_junit(results, path):
    with open(path, "w") as file:
        file.write(f'<testsuites tests="{len(results)}" failures="{count(results, "failed")}">\n')
        for program in sorted({r.program for r in results}):
            file.write(f'<testsuite name="{program[5:]}">\n')
            for r in (r for r in results if r.program == program):
                suite, name = r.test.split(".", 1)
                inner = {"failed": f"<failure message={quoteattr(r.output[-4000:])}/>", "skipped": "<skipped/>"}
                file.write(f'<testcase classname={quoteattr(suite)} name={quoteattr(name)} time="{r.seconds:.3f}">'
                           f'{inner.get(r.outcome, "")}</testcase>\n')
            file.write("</testsuite>\n")
        file.write("</testsuites>\n")


def failures(results):
    return "".join(f"== {r.program[5:]} {r.test}\n{r.output}\n\n" for r in results if r.outcome == "failed")


def write_logs(results, folder):
    folder.mkdir(parents=True, exist_ok=True)
    kept = [{**r._asdict(), "output": r.output if r.outcome == "failed" else ""} for r in results]
    (folder / "results.json").write_text(json.dumps(kept, indent=0))
    (folder / "failures.txt").write_text(failures(results))
    write_junit(results, folder / "junit.xml")


def run(options):
    here = gpus_here()
    indices = [row[0] for row in here] or ["0"]
    if options.gpus > len(indices):
        fail(f"--gpus: got {options.gpus}, but this machine has {len(here)} GPUs")
    groups = [indices[i:i + options.gpus] for i in range(0, len(indices) - options.gpus + 1, options.gpus)]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        tests = Tests(options.package, scratch)
        runner = Runner(tests, options, groups)
        results = runner.run(tests.batches(ONE_GPU if options.gpus == 1 else SEVERAL_GPUS, options.filter))
        commit = tests.commit()
    seconds = time.monotonic() - start
    device = f"{len(here)} x {here[0][1]}, driver {here[0][2]}" if here else "no GPU"
    facts = (f"{datetime.date.today()}, {commit}, {device}: {len(results)} tests in {seconds:.0f} s, "
             f"{runner.jobs} processes of {runner.threads} threads")
    text = summary(results)
    print(f"{failures(results)[-20000:]}{facts}.\n\n{text}\n")
    if options.out:
        write_logs(results, pathlib.Path(options.out))
    if options.markdown:
        head = textwrap.fill(f"Written by `scripts/gpu_tests.py run --markdown`. {facts}.", 120)
        pathlib.Path(options.markdown).write_text(f"# Tests on GPUs: the last whole run\n\n{head}\n\n{text}\n")
    failed, passed, blind = count(results, "failed"), count(results, "passed"), skip_reasons(results)
    blind = blind["no GPU"] + blind["no device"]
    if failed or blind or not passed:
        fail(f"{failed} tests failed, {passed} passed, {blind} found no GPU")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    packing = commands.add_parser("pack", help="write a package of the tests")
    packing.add_argument("--build", default=ROOT / "build/release")
    packing.add_argument("--output", default=ROOT / "build/gpu_tests.tar.xz")
    packing.set_defaults(command=pack)
    running = commands.add_parser("run", help="run the tests and print a table")
    running.add_argument("package", nargs="?", default=ROOT / "build/release")
    running.add_argument("--gpus", type=int, default=1)
    running.add_argument("--jobs", type=int)
    running.add_argument("--filter", default="*")
    running.add_argument("--timeout", type=float)
    running.add_argument("--out")
    running.add_argument("--markdown")
    running.set_defaults(command=run)
    options = parser.parse_args()
    options.command(options)


if __name__ == "__main__":
    main()
