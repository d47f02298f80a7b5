#include "bench/calibrate.h"

#include <algorithm>
#include <limits>

#include "bench/message_rates.h"
#include "core/device_memory.h"
#include "inspect/profiler.h"

namespace ring {
namespace {

constexpr int kSteps = 3;
constexpr std::int64_t kCopied = std::int64_t{64} << 20;  // number of bytes copied to the host

// Work of one kind (FLOPs or bytes), its time, and for attention also its bytes.
struct Rate {
  double work = 0, seconds = 0, bytes = 0;
  double per_second() const { return seconds > 0 ? work / seconds : 0; }
  // Returns the rate after subtracting the time of the bytes, but at most half of all time.
  double per_second_beside(double bytes_per_second) const {
    return seconds > 0 ? work / std::max(seconds / 2, seconds - bytes / bytes_per_second) : 0;
  }
};

struct Rates {
  Rate products, attention, attention_backward, bytes;
  double shortest = std::numeric_limits<double>::max();

  void add(const ProfiledCall& c, double seconds) {
    shortest = std::min(shortest, seconds);
    if (c.slot == "matmul_fp8") return;  // there is no separate rate for it
    Rate& rate = c.slot.ends_with("matmul")       ? products
                 : c.slot == "attention"          ? attention
                 : c.slot == "attention_backward" ? attention_backward
                                                  : bytes;
    rate.work += &rate == &bytes ? c.cost.bytes : c.cost.flops;
    rate.seconds += seconds;
    rate.bytes += c.cost.bytes;
  }
};

double copies_to_host(const ExecContext& ctx) {
  if (ctx.stream.device().backend == Backend::cpu) return 0;
  const Tensor t = ctx.zeros({kCopied}, DType::u8, Lifetime::run);
  const std::shared_ptr<void> host = ctx.stream.impl().host_buffer(kCopied);
  return static_cast<double>(kCopied) /
         measure_sustained_seconds(ctx, 0.2, [&] { ctx.stream.impl().copy(host.get(), t.raw(), kCopied); });
}

void measure_messages(const ExecContext& ctx, Mesh& mesh, DeviceRates& r) {
  if (mesh.world() == 1) return;
  const MessageTime collective = measure_collective_time(ctx, mesh.all(), mesh.host());
  const MessageTime exchange = measure_exchange_time(ctx, mesh.all(), mesh.host());
  r.collective_seconds = collective.seconds;
  r.collective_bytes_per_second = collective.bytes_per_second;
  r.link_seconds = exchange.seconds;
  r.link_bytes_per_second = exchange.bytes_per_second;
}

Rates rates_of(const Profile& profile) {
  Rates rates;
  for (const ProfiledCall& c : profile.calls) rates.add(c, std::max(1e-9, c.device.seconds - profile.event_seconds));
  return rates;
}

}  // namespace

std::string calibrated_device(const ExecContext& ctx) {
  return ctx.stream.device().backend == Backend::cpu ? "cpu" : ctx.stream.impl().device_name();
}

DeviceRates calibrate(StepBenchmark& bench, const DeviceRates& before) {
  const ExecContext& ctx = bench.exec();
  const bool cpu = ctx.stream.device().backend == Backend::cpu;
  DeviceRates r = before;
  r.device = calibrated_device(ctx);
  Profiler profiler(kSteps);
  time_steps(bench, Profiler::kWarmup, 1, &profiler);
  const Rates measured = rates_of(profiler.read_profile());
  ComputeRates& own = r.of(ctx.precision);
  r.bytes_per_second = measured.bytes.per_second();
  own.products = measured.products.per_second();
  own.attention = measured.attention.per_second_beside(r.bytes_per_second);
  own.attention_backward = measured.attention_backward.per_second_beside(r.bytes_per_second);
  r.call_seconds = measured.shortest;
  r.peak_flops = cpu ? own.products : shipped_rates("h200").peak_flops;
  r.host_bytes_per_second = copies_to_host(ctx);
  measure_messages(ctx, bench.mesh(), r);
  if (const auto memory = device_memory(ctx.stream.device())) r.memory_bytes = static_cast<double>(memory->total);
  return r;
}

}  // namespace ring
