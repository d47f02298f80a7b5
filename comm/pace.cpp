#include "comm/pace.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/quantile.h"
#include "job/wait_time.h"

namespace ring {
namespace {

struct Part {
  const char* name;
  double StepParts::*of;
};
constexpr std::array kParts = {Part{"compute", &StepParts::compute}, Part{"data", &StepParts::data},
                               Part{"network", &StepParts::network}};

// Returns the median; of two ranks the smaller value, so that the faster rank is the reference.
template <class F>
double median_of(const std::vector<StepParts>& all, F value) {
  std::vector<double> values;
  for (const StepParts& p : all) values.push_back(value(p));
  return quantile(std::move(values), 0.5);
}

StepParts medians(const std::vector<StepParts>& steps) {
  StepParts m;
  for (const Part& part : kParts) m.*part.of = median_of(steps, [&](const StepParts& p) { return p.*part.of; });
  return m;
}

// The message that a rank sends to the others after a window of steps.
struct WindowOfRank {
  StepParts parts;
  GpuWindow gpu;
};

SlowRank describe_slow(int rank, double speed, const StepParts& own, const StepParts& usual) {
  const Part& part = *std::ranges::max_element(kParts, {}, [&](const Part& p) { return own.*p.of - usual.*p.of; });
  return {rank, speed, part.name, own.*part.of, usual.*part.of};
}

}  // namespace

std::vector<SlowRank> SlowRankDetector::add_window(const std::vector<StepParts>& ranks) {
  slow_.resize(ranks.size());
  const double usual = median_of(ranks, [](const StepParts& p) { return p.own(); });
  std::vector<SlowRank> found;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const double own = ranks[r].own(), speed = usual / own;
    const bool well = speed >= kSlow || own - usual < kMinExcess;
    slow_[r] = well ? 0 : slow_[r] + 1;
    if (slow_[r] == kWindows) found.push_back(describe_slow(static_cast<int>(r), speed, ranks[r], medians(ranks)));
  }
  return found;
}

StepParts Pace::split_step_time(double data_seconds) {
  const double now = seconds_now(), seconds = now - std::exchange(since_, now);
  const double all_waited = std::chrono::duration<double>(waited_for_groups).count();
  const double all_sending = static_cast<double>(sending_ns.load()) * 1e-9;
  const double waited = all_waited - std::exchange(waited_, all_waited);
  const double sending = all_sending - std::exchange(sending_, all_sending);
  seconds_.push_back(seconds);
  return {std::max(0.0, seconds - data_seconds - waited), data_seconds, std::min(sending, waited)};
}

std::vector<SlowRank> Pace::on_step(double data_seconds) {
  std::vector<SlowRank> found;
  slow_gpus_.clear();
  if (under_way_) found = finish_exchange();
  steps_.push_back(split_step_time(data_seconds));
  if (steps_.size() == kWindow) start_exchange();
  return found;
}

void Pace::start_exchange() {
  if (!own_.defined()) {
    const Stream stream = Stream::cpu(1);
    const std::int64_t bytes = sizeof(WindowOfRank);
    own_ = Tensor::empty({bytes}, DType::u8, stream);
    all_ = Tensor::empty({host_.size() * bytes}, DType::u8, stream);
  }
  WindowOfRank own{medians(steps_), gpu_ ? gpu_() : GpuWindow{}};
  if (own.gpu.step_seconds == 0) own.gpu.step_seconds = median(seconds_);
  seconds_.clear();
  steps_.clear();
  std::memcpy(own_.raw(), &own, sizeof own);
  work_ = host_.all_gather(all_, own_);
  under_way_ = true;
}

std::vector<SlowRank> Pace::finish_exchange() {
  under_way_ = false;
  work_.synchronize();  // allowed host wait: transport
  std::vector<WindowOfRank> ranks(static_cast<std::size_t>(host_.size()));
  std::memcpy(ranks.data(), all_.raw(), all_.bytes());
  std::vector<StepParts> parts;
  std::vector<GpuWindow> gpus;
  for (const WindowOfRank& r : ranks) parts.push_back(r.parts), gpus.push_back(r.gpu);
  slow_gpus_ = slow_gpu_detector_.add_window(gpus);
  return slow_rank_detector_.add_window(parts);
}

}  // namespace ring
