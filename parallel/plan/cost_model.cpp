#include "parallel/plan/cost_model.h"

#include <algorithm>

namespace ring {
namespace {

double flops_per_second(const DeviceRates& r, std::string_view slot) {
  if (slot == "attention") return r.attention_flops;
  return slot == "attention_backward" ? r.attention_backward_flops : r.matmul_flops;
}

}  // namespace

void DeviceRates::fields(Fields& f) {
  constexpr double kMostRate = 1e18;
  f("device", device, "what was measured");
  f("peak_flops", peak_flops, "FLOP/s that MFU refers to", in_range(1, kMostRate));
  f("matmul_flops", matmul_flops, "FLOP/s of matrix products", in_range(1, kMostRate));
  f("attention_flops", attention_flops, "FLOP/s of kept pairs, forward", in_range(1, kMostRate));
  f("attention_backward_flops", attention_backward_flops, "FLOP/s of kept pairs, backward", in_range(1, kMostRate));
  f("bytes_per_second", bytes_per_second, "read and written by kernels", in_range(1, kMostRate));
  f("call_seconds", call_seconds, "of the shortest kernel", in_range(0, 1));
  f("link_bytes_per_second", link_bytes_per_second, "between two devices of a machine, each way; 0 = not measured",
    in_range(0, kMostRate));
  f("host_bytes_per_second", host_bytes_per_second, "between device and host memory, each way; 0 = not measured",
    in_range(0, kMostRate));
  f("memory_bytes", memory_bytes, "of the device; 0 = not known", in_range(0, kMostRate));
}

// h200: measured on H200 SXM at 700 W (docs/measured/): products of training shapes, attention of heads of 128 over 8K
// to 32K tokens, deterministic; what a program can allocate. h100: the same kernels with the bandwidth and the memory
// of its data sheet, not measured.
DeviceRates shipped_rates(const std::string& device, int threads) {
  const DeviceRates h200{.device = "h200",
                         .peak_flops = 989e12,
                         .matmul_flops = 650e12,
                         .attention_flops = 620e12,
                         .attention_backward_flops = 560e12,
                         .bytes_per_second = 3.9e12,
                         .call_seconds = 4e-6,
                         .link_bytes_per_second = 187e9,
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
  if (device != "cpu") fail("no rates are shipped for '", device, "': there are h100, h200 and cpu");
  const double n = std::max(1, threads);
  return {.device = "cpu",
          .peak_flops = 50e9 * n,
          .matmul_flops = 50e9 * n,
          .attention_flops = 15e9 * n,
          .attention_backward_flops = 12e9 * n,
          .bytes_per_second = 8e9 * std::min(n, 4.0),
          .call_seconds = 5e-6,
          .link_bytes_per_second = 2e9,
          .host_bytes_per_second = 8e9};
}

double seconds_of(const DeviceRates& r, std::string_view slot, const Cost& cost) {
  return std::max({r.call_seconds, cost.flops / flops_per_second(r, slot), cost.bytes / r.bytes_per_second});
}

// Rings: each rank passes on all parts but its own, twice where they are summed and handed out again.
double seconds_of(const DeviceRates& r, const FakeTransfer& t) {
  if (r.link_bytes_per_second == 0) return 0;
  const double share = static_cast<double>(t.ranks - 1) / t.ranks;
  const double passes = t.operation == "exchange" ? 1 : t.operation == "all_reduce" ? 2 * share : share;
  return r.call_seconds + passes * static_cast<double>(t.bytes) / r.link_bytes_per_second;
}

}  // namespace ring
