#include "engine/memory/cost_model.h"

#include <algorithm>
#include <cmath>

namespace ring {
namespace {

constexpr double kMaxRate = 1e18;
constexpr double kFp8Speedup = 1.6;  // speedup of FP8 GEMMs over bf16; measured: 1.64 blockwise, 1.72 tensorwise
// Rate of mma.sync kernels relative to the Hopper attention kernels, which use wgmma. Measured in the forward pass with
// 16K and 32K tokens: 0.50 and 0.51 (docs/measured/attention.md).
constexpr double kMmaSpeed = 0.5;

double flops_per_second(const ComputeRates& r, Precision precision, std::string_view slot) {
  if (slot == "attention") return r.attention;
  if (slot == "block_mass") return precision == Precision::bf16 ? kMmaSpeed * r.attention : r.attention;
  if (slot == "matmul_fp8") return r.products * kFp8Speedup;
  return slot == "attention_backward" ? r.attention_backward : r.products;
}

const char* name_of(Precision p) {
  switch (p) {
    case Precision::bf16: return "bf16";
    case Precision::tf32: return "tf32";
    default: return "fp32";
  }
}

}  // namespace

void ComputeRates::fields(Fields& f) {
  f("products", products, "FLOP/s of matrix products; 0 = not measured", in_range(0, kMaxRate));
  f("attention", attention, "FLOP/s of attention over kept pairs, forward", in_range(0, kMaxRate));
  f("attention_backward", attention_backward, "FLOP/s of attention over kept pairs, backward", in_range(0, kMaxRate));
}

void DeviceRates::fields(Fields& f) {
  f("device", device, "name of the measured device");
  f("peak_flops", peak_flops, "FLOP/s that MFU refers to", in_range(1, kMaxRate));
  f("bf16", bf16, "rates of kernels in bf16");
  f("tf32", tf32, "rates of kernels in fp32 with TF32 products");
  f("fp32", fp32, "rates of kernels in fp32");
  f("bytes_per_second", bytes_per_second, "bytes per second that kernels read and write", in_range(1, kMaxRate));
  f("call_seconds", call_seconds, "seconds of the shortest kernel", in_range(0, 1));
  f("link_bytes_per_second", link_bytes_per_second,
    "bytes per second between two devices of a machine, each way; 0 = not measured", in_range(0, kMaxRate));
  f("link_seconds", link_seconds, "seconds of the shortest message over that link; 0 = call_seconds", in_range(0, 10));
  f("collective_bytes_per_second", collective_bytes_per_second,
    "bytes per second that a rank passes on in collectives; 0 = not measured", in_range(0, kMaxRate));
  f("collective_seconds", collective_seconds, "seconds of the shortest collective", in_range(0, 10));
  f("node_link_bytes_per_second", node_link_bytes_per_second,
    "bytes per second from a node to other nodes, each way, shared by its ranks; 0 = not measured",
    in_range(0, kMaxRate));
  f("node_link_seconds", node_link_seconds, "seconds of the shortest message between nodes", in_range(0, 10));
  f("host_bytes_per_second", host_bytes_per_second,
    "bytes per second between device and host memory, each way; 0 = not measured", in_range(0, kMaxRate));
  f("memory_bytes", memory_bytes, "memory of the device; 0 = not known", in_range(0, kMaxRate));
}

ComputeRates& DeviceRates::of(Precision p) { return p == Precision::bf16 ? bf16 : p == Precision::tf32 ? tf32 : fp32; }

const ComputeRates& DeviceRates::of(Precision p) const {
  const ComputeRates& r = const_cast<DeviceRates*>(this)->of(p);
  if (std::min({r.products, r.attention, r.attention_backward}) > 0) return r;
  fail("the rates of ", device, " contain none for ", name_of(p),
       ". Measure them and add them to the file: ringmaster bench calibrate CONFIG train.precision=", name_of(p),
       " --out FILE");
}

// h200: H200 SXM at 700 W (docs/measured/).
// * bf16 GEMMs: measured with the shapes that training uses, near the power limit
// * bf16 attention: 0.82 of the rates that heads of 128 reach in bursts, excluding the time to move their bytes (739
//   and 674 TFLOP/s); the factor is fitted to steps of dense attention over 32K to 128K tokens, which are at the power
//   limit
// * tf32: GEMMs reach the same share of NVIDIA's data sheet (494.7e12 dense) as bf16 GEMMs (of 989.4e12); attention is
//   fitted to two measured steps
// * fp32: GEMMs are fitted to the one measured step; attention has the rates of tf32, which uses the same kernels
// * collectives: fitted to four measured steps with tensor parallelism over two GPUs
// * memory: the bytes that a program can allocate
// h100: not measured; the same kernel efficiency with the bandwidth and the memory in its data sheet.
// cpu: a thread of a server CPU with AVX-512 (docs/measured/cpu.md).
DeviceRates shipped_rates(const std::string& device, int threads) {
  const DeviceRates h200{.device = "h200",
                         .peak_flops = 989e12,
                         .bf16 = {670e12, 606e12, 553e12},
                         .tf32 = {335e12, 14.4e12, 14.4e12},
                         .fp32 = {51e12, 14.4e12, 14.4e12},
                         .bytes_per_second = 3.9e12,
                         .call_seconds = 4e-6,
                         .link_bytes_per_second = 187e9,
                         .collective_bytes_per_second = 317e9,
                         .collective_seconds = 30e-6,
                         .host_bytes_per_second = 50e9,
                         .memory_bytes = 139.8 * (1 << 30)};
  if (device == "h200") return h200;
  if (device == "h100") {
    DeviceRates h100 = h200;
    h100.device = "h100";
    h100.bytes_per_second = 2.7e12;
    h100.memory_bytes = 79.1 * (1 << 30);
    return h100;
  }
  if (device != "cpu") fail("no rates are shipped for '", device, "', only for h100, h200 and cpu");
  const double n = std::max(1, threads);
  return {.device = "cpu",
          .peak_flops = 110e9 * n,
          .fp32 = {110e9 * n, 55e9 * n, 65e9 * n},
          .bytes_per_second = 8e9 * std::min(n, 4.0),
          .call_seconds = 5e-6,
          .link_bytes_per_second = 2e9,
          .collective_bytes_per_second = 2e9,
          .collective_seconds = 50e-6,
          .host_bytes_per_second = 8e9};
}

double seconds_of(const DeviceRates& r, Precision precision, std::string_view slot, const Cost& cost) {
  const double computing = cost.flops / flops_per_second(r.of(precision), precision, slot);
  if (slot == "attention" || slot == "attention_backward")
    return std::max(r.call_seconds, computing + cost.bytes / r.bytes_per_second);
  return std::max({r.call_seconds, computing, cost.bytes / r.bytes_per_second});
}

// In a ring of n ranks, each rank sends (n - 1) / n of the tensor, and twice that for an all-reduce.
double sent_bytes(const FakeTransfer& t) {
  const auto bytes = static_cast<double>(t.bytes);
  if (t.operation == "exchange") return bytes;
  const double share = static_cast<double>(t.ranks - 1) / t.ranks;
  return t.operation == "all_reduce" ? 2 * share * bytes : share * bytes;
}

// In a ring, one rank on each node passes the bytes on to the next node.
double sent_between_nodes(const FakeTransfer& t) {
  if (t.nodes == 1) return 0;
  if (t.operation == "exchange") return t.bytes_between_nodes;
  if (t.operation == "all_to_all") return static_cast<double>(t.bytes) * (t.ranks - t.ranks_on_node) / t.ranks;
  return sent_bytes(t) / t.ranks_on_node;
}

double seconds_inside_node(const DeviceRates& r, const FakeTransfer& t) {
  if (t.operation == "exchange") {
    const double min = r.link_seconds > 0 ? r.link_seconds : r.call_seconds;
    const bool known = t.nodes > 1 && r.node_link_bytes_per_second > 0;
    const double inside = std::max(0.0, sent_bytes(t) - (known ? t.bytes_between_nodes : 0));
    return r.link_bytes_per_second == 0 ? 0 : min + inside / r.link_bytes_per_second;
  }
  if (r.collective_bytes_per_second == 0) return 0;
  return r.collective_seconds + sent_bytes(t) / r.collective_bytes_per_second;
}

// All ranks of a node send at the same time, and share its link: all groups of which the node has ranks. Groups on many
// nodes have a latency that grows with the logarithm of their number, as NCCL's trees do.
double seconds_between_nodes(const DeviceRates& r, const FakeTransfer& t) {
  const double sent = t.ranks_of_node * sent_between_nodes(t);
  if (!(sent > 0) || r.node_link_bytes_per_second == 0) return 0;
  const bool direct = t.operation == "exchange" || t.operation == "all_to_all";
  const double hops = direct ? 1 : std::ceil(std::log2(t.nodes));
  return hops * r.node_link_seconds + sent / r.node_link_bytes_per_second;
}

double seconds_of(const DeviceRates& r, const FakeTransfer& t) {
  return std::max(seconds_inside_node(r, t), seconds_between_nodes(r, t));
}

}  // namespace ring
