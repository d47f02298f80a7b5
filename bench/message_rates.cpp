#include "bench/message_rates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "comm/host.h"
#include "core/clock.h"

namespace ring {
namespace {

constexpr int kRounds = 3;  // the best round is used, because other programs can only add time
constexpr double kMinTimes = 4, kMaxTimes = 1000;
constexpr double kLongSeconds = 0.1;  // after a message that takes longer, larger ones are not sent
// Sizes of messages in bytes. The longest take the device far longer than the host needs to launch them.
using MessageSizes = std::array<std::int64_t, 4>;
constexpr MessageSizes kGpuMessages = {1 << 16, 1 << 20, 1 << 23, 1 << 26};
constexpr MessageSizes kCpuMessages = {1 << 12, 1 << 16, 1 << 19, 1 << 22};

const MessageSizes& message_sizes(const ExecContext& ctx) {
  return ctx.stream.device().backend == Backend::cpu ? kCpuMessages : kGpuMessages;
}

double slowest(Communicator& host, double seconds) {
  all_reduce_host(host, {&seconds, 1}, Reduce::max);
  return seconds;
}

// The barrier excludes the wait for late ranks from a rank's time.
double round_of(const ExecContext& ctx, Communicator& host, int times, const std::function<void()>& queue_one) {
  ctx.stream.synchronize();      // allowed host wait: diagnosis
  host.barrier().synchronize();  // allowed host wait: diagnosis
  const double began = seconds_now();
  for (int i = 0; i < times; ++i) queue_one();
  ctx.stream.synchronize();  // allowed host wait: diagnosis
  return slowest(host, (seconds_now() - began) / times);
}

// Measures samples of growing size and fits them. Stops before sizes that take long. All ranks stop at the same size,
// because they all get the time of the slowest rank.
MessageTime measure_sizes(const ExecContext& ctx, const std::function<MessageSample(std::int64_t bytes)>& measure) {
  std::vector<MessageSample> samples;
  for (const std::int64_t bytes : message_sizes(ctx)) {
    samples.push_back(measure(bytes));
    if (samples.size() > 1 && samples.back().seconds > kLongSeconds) break;
  }
  return fit_message_time(samples);
}

// Fits seconds = bytes / rate, by least squares of relative errors, like fit_message_time().
MessageTime all_rate(const std::vector<MessageSample>& samples) {
  double sum = 0, squares = 0;
  for (const auto& [bytes, seconds] : samples) {
    sum += bytes / seconds;
    squares += bytes * bytes / (seconds * seconds);
  }
  return {0, squares / sum};
}

}  // namespace

// Minimizes the sum of (a/t + b x/t - 1)^2 over the fixed part a and the seconds per byte b.
MessageTime fit_message_time(const std::vector<MessageSample>& samples) {
  double u = 0, v = 0, uu = 0, uv = 0, vv = 0;
  for (const auto& [bytes, seconds] : samples) {
    const double a = 1 / seconds, b = bytes / seconds;
    u += a, v += b, uu += a * a, uv += a * b, vv += b * b;
  }
  const double determinant = uu * vv - uv * uv;
  const double fixed = (u * vv - v * uv) / determinant, of_byte = (v * uu - u * uv) / determinant;
  return fixed >= 0 && of_byte > 0 ? MessageTime{fixed, 1 / of_byte} : all_rate(samples);
}

double measure_message_seconds(const ExecContext& ctx, Communicator& host, double target_seconds,
                               const std::function<void()>& queue_one) {
  round_of(ctx, host, 1, queue_one);  // establishes connections and allocates memory
  const double first = std::max(1e-7, round_of(ctx, host, 1, queue_one));
  const int times = static_cast<int>(std::clamp(std::ceil(target_seconds / first), kMinTimes, kMaxTimes));
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < kRounds; ++i) best = std::min(best, round_of(ctx, host, times, queue_one));
  return best;
}

MessageTime measure_collective_time(const ExecContext& ctx, Communicator& group, Communicator& host, double seconds) {
  const DType type = activation_type(ctx.precision);
  const auto size = static_cast<std::int64_t>(size_of(type));
  return measure_sizes(ctx, [&](std::int64_t bytes) {
    const std::int64_t elements = std::max<std::int64_t>(1, bytes / (size * group.size()));
    const Tensor part = ctx.zeros({elements}, type, Lifetime::run);
    const Tensor whole = ctx.zeros({elements * group.size()}, type, Lifetime::run);
    const double both = measure_message_seconds(ctx, host, seconds, [&] {
      group.all_gather(whole, part, ctx.stream.record()).wait(ctx.stream);
      group.reduce_scatter(part, whole, Reduce::sum, ctx.stream.record()).wait(ctx.stream);
    });
    return MessageSample{static_cast<double>(elements * size * (group.size() - 1)), both / 2};
  });
}

MessageTime measure_all_reduce_time(const ExecContext& ctx, Communicator& group, Communicator& host, double seconds) {
  return measure_sizes(ctx, [&](std::int64_t bytes) {
    const Tensor whole = ctx.zeros({bytes / 4}, DType::f32, Lifetime::run);
    const double took = measure_message_seconds(
        ctx, host, seconds, [&] { group.all_reduce(whole, Reduce::sum, ctx.stream.record()).wait(ctx.stream); });
    return MessageSample{2 * static_cast<double>(bytes) * (group.size() - 1) / group.size(), took};
  });
}

// Exchanges messages like ring attention: into a buffer that peers can write to.
MessageTime measure_exchange_time(const ExecContext& ctx, Communicator& group, Communicator& host, double seconds) {
  const int n = group.size(), next = (group.rank() + 1) % n, before = (group.rank() + n - 1) % n;
  return measure_sizes(ctx, [&](std::int64_t bytes) {
    const Tensor out = ctx.zeros({bytes}, DType::u8, Lifetime::run);
    const Tensor in = group.receive_buffer({bytes}, DType::u8, ctx.stream);
    return MessageSample{static_cast<double>(bytes), measure_message_seconds(ctx, host, seconds, [&] {
                           group.exchange({{out, next}}, {{in, before}}, ctx.stream.record()).wait(ctx.stream);
                         })};
  });
}

MessageTime measure_pair_time(const ExecContext& ctx, Communicator& group, Communicator& host, bool active,
                              double seconds) {
  const int peer = 1 - group.rank();
  return measure_sizes(ctx, [&](std::int64_t bytes) {
    const Tensor out = ctx.zeros({bytes}, DType::u8, Lifetime::run), in = ctx.zeros({bytes}, DType::u8, Lifetime::run);
    return MessageSample{static_cast<double>(bytes), measure_message_seconds(ctx, host, seconds, [&] {
                           if (!active || group.rank() > 1) return;
                           group.send_recv(out, peer, in, peer, ctx.stream.record()).wait(ctx.stream);
                         })};
  });
}

}  // namespace ring
