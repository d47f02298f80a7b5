#!/usr/bin/env python3
"""Runs a command of ringmaster on a cluster of several nodes that this machine simulates.

    scripts/cluster.py [--nodes 2] [--per-node 2] [--rate 1Gb/s] [--inner-rate 8Gb/s] [--delay MS]
                       [--loss PERCENT] [--network auto] [--program build/release/ringmaster] [--gpus] -- COMMAND...

Each node is a network namespace with its own host name, and runs `ringmaster launch` with --per-node workers. COMMAND
is what follows `ringmaster launch .. --`, such as

    scripts/cluster.py --nodes 2 --per-node 4 --rate 1Gb/s -- bench links --device cpu --out rates.yaml
    scripts/cluster.py --rate 100Mb/s --delay 5 --loss 0.1 -- train my.yaml parallel.cp=4

--rate limits what each node sends and what it receives; --inner-rate, what the workers of a node send each other, all
of them together (tc-tbf on the loopback device). Two networks are available:

    tbf     virtual wires to a bridge; the kernel's token bucket filter (tc-tbf) limits the rate
    switch  a switch in this process, which forwards frames between TAP devices: rate, delay and loss, up to a few
            hundred Mb/s. It needs /dev/net/tun, and no queueing discipline of the kernel (netem is not in every kernel)

auto takes the switch if --delay or --loss is given, else tbf. --gpus gives each node its own GPUs (node i the GPUs
i * per-node ..), which NCCL connects by sockets over this network; without it, workers see no GPU.

Needs root (CAP_NET_ADMIN, CAP_SYS_ADMIN), or user namespaces. Exits with the largest status of the nodes' launchers,
and with 77 if this machine does not permit such a network, with the reason.
"""
import argparse
import ctypes
import fcntl
import heapq
import os
import pathlib
import random
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
UNAVAILABLE = 77  # the status with which test drivers skip
BURST_SECONDS = 0.002  # what a token bucket lets through at once, as time at its rate
QUEUE_SECONDS = 0.2  # longer queues of the switch drop frames
MTU = 9000
CLONE_NEWNET = 0x40000000


class Unavailable(Exception):
    """This machine cannot simulate such a network."""


def bits_per_second(text):
    match = re.fullmatch(r"([0-9.]+) ?([kKMGT]?)(b|bit|B)(/s|ps)", text)
    try:
        rate = float(match[1]) * {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[match[2]]
    except (TypeError, ValueError):
        rate = 0
    if not rate > 0:
        raise argparse.ArgumentTypeError(f"expected a rate with a unit, such as 1Gb/s or 100MB/s, got '{text}'")
    return rate * (8 if match[3] == "B" else 1)


def number(low, high):
    def parse(text):
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"expected a number in [{low}, {high}], got '{text}'")
        return value

    return parse


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2, choices=range(2, 65), metavar="N")
    parser.add_argument("--per-node", type=int, default=2, choices=range(1, 65), metavar="P")
    parser.add_argument("--rate", type=bits_per_second, help="rate of each node, such as 1Gb/s; default: none")
    parser.add_argument("--inner-rate", type=bits_per_second, help="rate that workers of a node share; default: none")
    parser.add_argument("--delay", type=number(0, 10000), default=0, help="milliseconds from node to node")
    parser.add_argument("--loss", type=number(0, 50), default=0, help="percent of lost frames")
    parser.add_argument("--seed", type=int, default=1, help="random seed for lost frames")
    parser.add_argument("--network", choices=["auto", "tbf", "switch"], default="auto")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/ringmaster")
    parser.add_argument("--gpus", action="store_true", help="give each node its own GPUs")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND")
    given = parser.parse_args()
    if given.network == "auto":
        given.network = "switch" if given.delay or given.loss else "tbf"
    if given.network == "tbf" and (given.delay or given.loss):
        parser.error("--delay and --loss need --network switch")
    if not os.access(given.program, os.X_OK):
        parser.error(f"--program: there is no {given.program}; 'make program' builds it")
    return given


# --- nodes ----------------------------------------------------------------------------------------------------------
class Node:
    """A process that keeps a network namespace and a host name open. The kernel removes both with the process."""

    def __init__(self, name, address="", inner_rate=None):
        self.name, self.address, self.inner_rate = name, address, inner_rate
        holder = f"hostname {name} && echo ready && exec sleep infinity"
        self.process = subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c", holder], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=end_with_parent)
        if self.process.stdout.readline().strip() != "ready":
            raise Unavailable(f"no network namespace: {self.process.communicate()[1].strip()}")

    @property
    def pid(self):
        return self.process.pid

    def command(self, *words):
        spaces = [f"--{kind}=/proc/{self.pid}/ns/{kind}" for kind in ("net", "uts")]
        return ["nsenter", *spaces, "--", *map(str, words)]

    def run(self, *words):
        done = subprocess.run(self.command(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise Unavailable(f"{' '.join(map(str, words))}: {done.stdout.strip()}")

    def set_up(self):
        self.run("ip", "link", "set", "lo", "mtu", MTU, "up")
        if self.inner_rate:
            limit(self, "lo", self.inner_rate)
        self.run("ip", "address", "add", f"{self.address}/16", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "mtu", MTU, "up")

    def stop(self):
        self.process.kill()
        self.process.wait()


def end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def limit(node, device, rate):
    burst = max(2 * MTU, int(rate / 8 * BURST_SECONDS))
    node.run("tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{int(rate)}bit", "burst", burst, "latency",
             "100ms")


def connect_by_bridge(nodes, rate):
    """Connects each node by a veth pair to a bridge in a namespace of its own. Returns the bridge's Node."""
    bridge = Node("bridge")
    bridge.run("ip", "link", "add", "name", "br0", "type", "bridge")
    bridge.run("ip", "link", "set", "br0", "mtu", MTU, "up")
    for i, node in enumerate(nodes):
        port = f"port{i}"
        bridge.run("ip", "link", "add", "name", port, "type", "veth", "peer", "name", "eth0", "netns", node.pid)
        bridge.run("ip", "link", "set", port, "mtu", MTU, "master", "br0", "up")
        node.set_up()
        if rate:
            limit(node, "eth0", rate)
            limit(bridge, port, rate)
    return bridge


# --- the switch -----------------------------------------------------------------------------------------------------
def open_tap(node):
    """Returns the descriptor of a TAP device eth0 in the node's namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net", "rb") as own, open(f"/proc/{node.pid}/ns/net", "rb") as other:
        if libc.setns(other.fileno(), CLONE_NEWNET):
            raise Unavailable(f"setns: {os.strerror(ctypes.get_errno())}")
        try:
            tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(tap, 0x400454CA, struct.pack("16sH22x", b"eth0", 0x0002 | 0x1000))  # TUNSETIFF: TAP, NO_PI
        except OSError as error:
            raise Unavailable(f"/dev/net/tun: {error.strerror}") from None
        finally:
            libc.setns(own.fileno(), CLONE_NEWNET)
    return tap


class Switch(threading.Thread):
    """Forwards frames between TAP devices, each with a rate in both directions, a delay and a loss."""

    def __init__(self, taps, rate, delay, loss, seed):
        super().__init__(daemon=True)
        self.taps, self.rate, self.delay, self.loss = taps, rate, delay, loss
        self.random = random.Random(seed)
        self.ports = {}  # port by address of the hardware
        self.sent, self.received = [0.0] * len(taps), [0.0] * len(taps)  # times at which the port is free again
        self.waiting, self.count = [], 0

    def take(self, port, frame, now):
        self.ports[frame[6:12]] = port
        seconds = 8 * len(frame) / self.rate if self.rate else 0
        self.sent[port] = max(now, self.sent[port]) + seconds
        if self.sent[port] - now > QUEUE_SECONDS or self.random.random() < self.loss:
            self.sent[port] -= seconds
            return
        known = self.ports.get(frame[:6])
        for to in range(len(self.taps)) if known is None else [known]:
            if to == port:
                continue
            arrives = max(self.sent[port], self.received[to] + seconds)
            if arrives - now > QUEUE_SECONDS:
                continue
            self.received[to] = arrives
            self.count += 1
            heapq.heappush(self.waiting, (arrives + self.delay, self.count, to, frame))

    def run(self):
        poller = select.poll()
        for tap in self.taps:
            poller.register(tap, select.POLLIN)
        ports = {tap: i for i, tap in enumerate(self.taps)}
        while True:
            wait = 1000.0 if not self.waiting else max(0.0, 1000 * (self.waiting[0][0] - time.monotonic()))
            for tap, _ in poller.poll(wait):
                self.read(ports[tap])
            while self.waiting and self.waiting[0][0] <= time.monotonic():
                _, _, to, frame = heapq.heappop(self.waiting)
                try:
                    os.write(self.taps[to], frame)
                except OSError:  # the device is down or its queue is full: the frame is lost
                    pass

    def read(self, port):
        for _ in range(64):
            try:
                frame = os.read(self.taps[port], MTU + 64)
            except OSError:  # nothing more to read, or the device is down
                return
            self.take(port, frame, time.monotonic())


# --- the job --------------------------------------------------------------------------------------------------------
def launch(given, nodes, secret):
    processes = []
    for i, node in enumerate(nodes):
        environment = dict(os.environ)
        first = i * given.per_node
        own = range(first, first + given.per_node) if given.gpus else []
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, own))
        environment.update({"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"})
        command = [given.program.resolve(), "launch", "--nnodes", given.nodes, "--nproc-per-node", given.per_node,
                   "--node-rank", i, "--rdzv-endpoint", f"{nodes[0].address}:29400", "--secret-file", secret, "--",
                   *given.command]
        processes.append(subprocess.Popen(node.command(*command), env=environment))
    return processes


def run(given):
    nodes, others, taps = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for i in range(given.nodes):
                nodes.append(Node(f"node{i}", f"10.73.0.{i + 1}", given.inner_rate))
            if given.network == "tbf":
                others.append(connect_by_bridge(nodes, given.rate))
            else:
                taps = [open_tap(node) for node in nodes]
                Switch(taps, given.rate, given.delay / 1000, given.loss / 100, given.seed).start()
                for node in nodes:
                    node.set_up()
            secret = pathlib.Path(folder) / "secret"
            subprocess.run([given.program.resolve(), "launch", "--make-secret", secret], check=True,
                           stdout=subprocess.DEVNULL)
            processes = launch(given, nodes, secret)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda which, _: [p.send_signal(which) for p in processes if p.poll() is None])
            return max(abs(p.wait()) for p in processes)
        finally:
            for node in nodes + others:
                node.stop()


def main():
    given = arguments()
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", "/usr/bin:/bin"), "/usr/sbin", "/sbin"])
    for program in ("ip", "tc", "unshare", "nsenter"):
        if not shutil.which(program):
            print(f"cluster.py: needs the program {program} (packages iproute2 and util-linux)", file=sys.stderr)
            return UNAVAILABLE
    if os.geteuid() != 0 and "RING_CLUSTER_USER" not in os.environ:
        # Becomes root of a new user namespace, which may create networks.
        probe = subprocess.run(["unshare", "--user", "--map-root-user", "true"], stderr=subprocess.PIPE, text=True)
        if probe.returncode:
            print(f"cluster.py: needs root or user namespaces: {probe.stderr.strip()}", file=sys.stderr)
            return UNAVAILABLE
        os.environ["RING_CLUSTER_USER"] = "1"
        os.execvp("unshare", ["unshare", "--user", "--map-root-user", sys.executable, *sys.argv])
    try:
        return run(given)
    except Unavailable as reason:
        remedy = "" if given.network == "switch" else "; --network switch needs only /dev/net/tun"
        print(f"cluster.py: this machine does not permit --network {given.network}: {reason}{remedy}", file=sys.stderr)
        return UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main())
