#include "bench/calibrate.h"

#include <algorithm>
#include <limits>

#include "core/device_memory.h"
#include "inspect/profiler.h"

namespace ring {
namespace {

constexpr int kSteps = 3;
constexpr std::int64_t kMessage = std::int64_t{64} << 20;  // bytes

// Work of one kind, and how long it took.
struct Rate {
  double work = 0, seconds = 0;
  double per_second(double otherwise) const { return seconds > 0 ? work / seconds : otherwise; }
};

struct Rates {
  Rate products, attention, attention_backward, bytes;
  double shortest = std::numeric_limits<double>::max();

  void add(const ProfiledCall& c, double seconds) {
    shortest = std::min(shortest, seconds);
    Rate& rate = c.slot == "matmul"               ? products
                 : c.slot == "attention"          ? attention
                 : c.slot == "attention_backward" ? attention_backward
                                                  : bytes;
    rate.work += &rate == &bytes ? c.cost.bytes : c.cost.flops;
    rate.seconds += seconds;
  }
};

double copies_to_host(const ExecContext& ctx) {
  if (ctx.stream.device().backend == Backend::cpu) return 0;
  const Tensor t = ctx.zeros({kMessage}, DType::u8, Lifetime::run);
  const std::shared_ptr<void> host = ctx.stream.impl().host_buffer(kMessage);
  return static_cast<double>(kMessage) /
         sustained_seconds(ctx, 0.2, [&] { ctx.stream.impl().copy(host.get(), t.raw(), kMessage); });
}

// What a ring of all ranks sends, each way.
double messages(const ExecContext& ctx, Mesh& mesh) {
  if (mesh.world() == 1) return 0;
  const Tensor t = ctx.zeros({kMessage / 4}, DType::f32, Lifetime::run);
  Communicator& all = mesh.all();
  const auto sum = [&] { all.all_reduce(t, Reduce::sum, ctx.stream.record()).wait(ctx.stream); };
  constexpr int kTimes = 8;
  sum();
  ctx.stream.synchronize();  // host waits: diagnosis
  const double start = seconds_since_process_start();
  for (int i = 0; i < kTimes; ++i) sum();
  ctx.stream.synchronize();  // host waits: diagnosis
  const double seconds = (seconds_since_process_start() - start) / kTimes;
  return 2.0 * (mesh.world() - 1) / mesh.world() * static_cast<double>(kMessage) / seconds;
}

Rates rates_of(const Profile& profile) {
  Rates rates;
  for (const ProfiledCall& c : profile.calls) rates.add(c, std::max(1e-9, c.device.seconds - profile.event_seconds));
  return rates;
}

}  // namespace

DeviceRates calibrate(StepBenchmark& bench) {
  Profiler profiler(kSteps);
  time_steps(bench, Profiler::kWarmup, 1, &profiler);
  const ExecContext& ctx = bench.exec();
  const bool cpu = ctx.stream.device().backend == Backend::cpu;
  const Rates measured = rates_of(profiler.read());
  DeviceRates r = shipped_rates(cpu ? "cpu" : "h200", ctx.stream.impl().threads());
  r.device = cpu ? "cpu" : ctx.stream.impl().device_name();
  r.matmul_flops = measured.products.per_second(r.matmul_flops);
  r.attention_flops = measured.attention.per_second(r.attention_flops);
  r.attention_backward_flops = measured.attention_backward.per_second(r.attention_backward_flops);
  r.bytes_per_second = measured.bytes.per_second(r.bytes_per_second);
  r.call_seconds = measured.shortest;
  if (cpu) r.peak_flops = r.matmul_flops;
  r.host_bytes_per_second = copies_to_host(ctx);
  r.link_bytes_per_second = messages(ctx, bench.mesh());
  if (const auto memory = device_memory(ctx.stream.device())) r.memory_bytes = static_cast<double>(memory->total);
  return r;
}

}  // namespace ring
