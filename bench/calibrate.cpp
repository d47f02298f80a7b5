#include "bench/calibrate.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "core/clock.h"
#include "core/device_memory.h"
#include "engine/devices.h"
#include "inspect/profiler.h"

namespace ring {
namespace {

constexpr int kSteps = 3;
constexpr std::int64_t kMessage = std::int64_t{64} << 20;  // bytes

// Work of one kind, and how long it took.
struct Rate {
  double work = 0, seconds = 0;
  double per_second() const { return seconds > 0 ? work / seconds : 0; }
};

struct Rates {
  Rate products, attention, attention_backward, bytes;
  double shortest = std::numeric_limits<double>::max();

  void add(const ProfiledCall& c, double seconds) {
    shortest = std::min(shortest, seconds);
    Rate& rate = c.slot.ends_with("matmul")       ? products
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

// One message's, when all ranks start them back to back.
double message_seconds(const ExecContext& ctx, const std::function<void()>& start_one) {
  constexpr int kTimes = 16;
  start_one();
  ctx.stream.synchronize();  // host waits: diagnosis
  const double began = seconds_now();
  for (int i = 0; i < kTimes; ++i) start_one();
  ctx.stream.synchronize();  // host waits: diagnosis
  return (seconds_now() - began) / kTimes;
}

// Gathering so many elements of each rank, or scattering their sum, as slices of a model do.
double collective_seconds(const ExecContext& ctx, Communicator& all, std::int64_t elements) {
  const DType type = activation_type(ctx.precision);
  const Tensor part = ctx.zeros({elements}, type, Lifetime::run);
  const Tensor whole = ctx.zeros({elements * all.size()}, type, Lifetime::run);
  return message_seconds(ctx,
                         [&] {
                           all.all_gather(whole, part, ctx.stream.record()).wait(ctx.stream);
                           all.reduce_scatter(part, whole, Reduce::sum, ctx.stream.record()).wait(ctx.stream);
                         }) /
         2;
}

// Each rank sends to the next one and receives from the one before.
double exchange_seconds(const ExecContext& ctx, Communicator& all) {
  const Tensor out = ctx.zeros({kMessage}, DType::u8, Lifetime::run),
               in = ctx.zeros({kMessage}, DType::u8, Lifetime::run);
  const int n = all.size(), next = (all.rank() + 1) % n, before = (all.rank() + n - 1) % n;
  return message_seconds(ctx, [&] {
    all.exchange({{out, next}}, {{in, before}}, ctx.stream.record()).wait(ctx.stream);
  });
}

void measure_messages(const ExecContext& ctx, Mesh& mesh, const Config& c, DeviceRates& r) {
  if (mesh.world() == 1) return;
  constexpr std::int64_t kShort = 64;
  const ParallelPlan plan = plan_of(c, mesh.world());
  const std::int64_t elements = plan.micro_batch * c.model.context * c.model.width / mesh.world();
  r.collective_seconds = collective_seconds(ctx, mesh.all(), kShort);
  const double seconds = collective_seconds(ctx, mesh.all(), elements) - r.collective_seconds;
  const auto passed =
      static_cast<double>(elements) * (mesh.world() - 1) * static_cast<double>(size_of(activation_type(ctx.precision)));
  r.collective_bytes_per_second = passed / std::max(1e-9, seconds);
  r.link_bytes_per_second = static_cast<double>(kMessage) / exchange_seconds(ctx, mesh.all());
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
  const Rates measured = rates_of(profiler.read());
  ComputeRates& own = r.of(ctx.precision);
  own.products = measured.products.per_second();
  own.attention = measured.attention.per_second();
  own.attention_backward = measured.attention_backward.per_second();
  r.bytes_per_second = measured.bytes.per_second();
  r.call_seconds = measured.shortest;
  r.peak_flops = cpu ? own.products : shipped_rates("h200").peak_flops;
  r.host_bytes_per_second = copies_to_host(ctx);
  measure_messages(ctx, bench.mesh(), bench.config(), r);
  if (const auto memory = device_memory(ctx.stream.device())) r.memory_bytes = static_cast<double>(memory->total);
  return r;
}

}  // namespace ring
