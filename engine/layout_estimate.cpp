#include "engine/layout_estimate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/devices.h"
#include "engine/scaled_step.h"
#include "model/attention_schedule.h"
#include "model/flops.h"

namespace ring {
namespace {

constexpr double kGoodTokens = 8192;  // with this many tokens at a time, GEMMs are efficient
constexpr double kStateBytes = 12;    // master weights and two moments, in f32
constexpr double kGradientBytes = 4;
constexpr double kBackwardShare = 2.0 / 3;  // of a step's FLOPs; recomputing the forward costs half of that again

// Amounts of the whole model, which do not depend on the layout.
struct ModelCost {
  explicit ModelCost(const ModelConfig& m)
      : model(m),
        attention(12 * static_cast<double>(m.heads * m.head_dim) * attention_pairs(m)),
        matrices(flops_per_token(m) * static_cast<double>(m.context) - attention),
        parameters(matrices / 6 / static_cast<double>(m.context) + static_cast<double>(m.vocab_size * m.width)) {}

  const ModelConfig model;
  const double attention, matrices;  // FLOPs of one sequence
  const double parameters;
};

struct Estimate {
  bool fits = false;
  double seconds = 0;
};

// Estimates one layout, per rank. Amounts of a step are the amounts of its first micro-batch, times the number of
// micro-batches.
class Estimator {
 public:
  Estimator(const PlanRequest& q, const ModelCost& cost)
      : q_(q), cost_(cost), m_(cost.model), p_(q.config.parallel), rates_(q.rates.of(precision_of(q.config))) {
    const double sequences = static_cast<double>(q.config.train.batch_size) / static_cast<double>(p_.dp);
    const double per_sequence = static_cast<double>(m_.context) / static_cast<double>(p_.cp);
    micro_ = q.config.train.micro_batch > 0 ? static_cast<double>(q.config.train.micro_batch)
                                            : std::clamp(std::floor(kGoodTokens / per_sequence), 1.0, sequences);
    batches_ = sequences / micro_;
    tokens_ = micro_ * per_sequence;
    element_ = precision_of(q.config) == Precision::bf16 ? 2 : 4;
  }

  Estimate estimate() const {
    const double share = micro_ / static_cast<double>(p_.cp * p_.tp);
    double matrices = share * cost_.matrices / rates_.products;
    const double attention = share * cost_.attention *
                             ((1 - kBackwardShare) / rates_.attention + kBackwardShare / rates_.attention_backward);
    const double room = static_cast<double>(q_.budget) - state_bytes();
    if (room < activation_bytes()) matrices *= 1 + kBackwardShare / 2;
    const double computing = batches_ * (matrices + attention);
    const double waiting = batches_ * (tensor_seconds() + std::max(0.0, context_seconds() - attention)) +
                           std::max(0.0, data_seconds() - computing);
    return {room > input_bytes(), computing + waiting};
  }

 private:
  double seconds_of(const char* operation, double bytes, std::int64_t ranks, std::int64_t stride) const {
    if (ranks == 1) return 0;
    FakeTransfer t = placement_of_group(static_cast<int>(ranks), static_cast<int>(stride), q_.world);
    t.operation = operation;
    t.bytes = static_cast<std::size_t>(bytes);
    return ring::seconds_of(q_.rates, t);
  }

  // Four gathers and scatters of rows in the forward, and six in the backward, which gathers two inputs again.
  double tensor_seconds() const {
    const double rows = tokens_ * static_cast<double>(m_.width) * element_;
    return 10 * static_cast<double>(m_.layers) * seconds_of("all_gather", rows, p_.tp, 1);
  }

  // Returns the seconds that the cp messages of one forward and backward take. Keys and values travel in both, and
  // their gradients in f32. Each node receives the keys of each other node once. Within a node, keys go around in a
  // ring; with hybrid, the ranks exchange heads instead: queries, keys, values and outputs in the forward, and these
  // and their gradients in the backward. With one level, every message of a rank that is alone on its node goes between
  // nodes.
  double context_seconds() const {
    if (p_.cp == 1) return 0;
    const FakeTransfer placed = placement_of_group(static_cast<int>(p_.cp), static_cast<int>(p_.tp), q_.world);
    const double head = tokens_ * static_cast<double>(m_.head_dim) / static_cast<double>(p_.tp);
    FakeTransfer inside{.operation = "exchange"}, between = placed;
    between.operation = "exchange";
    between.bytes_between_nodes = head * 2 * static_cast<double>(m_.kv_heads) * (2 * element_ + kGradientBytes);
    const double others = static_cast<double>(placed.nodes - 1) * seconds_between_nodes(q_.rates, between);
    if (p_.cp_schedule == ContextSchedule::hybrid) {
      const double sent = 1 - 1.0 / placed.ranks_on_node;
      inside.bytes = static_cast<std::size_t>(sent * head * 6 * static_cast<double>(m_.heads + m_.kv_heads) * element_);
      return static_cast<double>(m_.layers) * (ring::seconds_of(q_.rates, inside) + others);
    }
    inside.bytes = static_cast<std::size_t>(between.bytes_between_nodes);
    return static_cast<double>(m_.layers) *
           std::max(static_cast<double>(p_.cp - 1) * ring::seconds_of(q_.rates, inside), others);
  }

  double data_seconds() const {
    const double own = cost_.parameters / static_cast<double>(p_.tp);
    const auto of = [&](const char* operation, double bytes) {
      return seconds_of(operation, own * bytes, p_.dp * p_.cp, p_.tp);
    };
    if (p_.zero == 0) return of("all_reduce", kGradientBytes);
    const double scatter = of("reduce_scatter", kGradientBytes), gather = of("all_gather", element_);
    return p_.zero == 1 ? scatter + gather : batches_ * (scatter + (p_.zero == 3 ? 2 * gather : gather / batches_));
  }

  double state_bytes() const {
    const double own = cost_.parameters / static_cast<double>(p_.tp), shard = own / static_cast<double>(p_.dp * p_.cp);
    return element_ * (p_.zero == 3 ? shard : own) + kGradientBytes * (p_.zero >= 2 ? shard : own) +
           kStateBytes * (p_.zero >= 1 ? shard : own);
  }
  // Inputs of all blocks, which are saved in any case (unless blocks form segments).
  double input_bytes() const {
    return tokens_ * static_cast<double>(m_.layers * m_.width) * element_ / static_cast<double>(p_.tp);
  }
  // All that a block saves if nothing is recomputed.
  double activation_bytes() const {
    const std::int64_t channels = 6 * m_.width + 2 * m_.kv_heads * m_.head_dim + 3 * m_.mlp_width;
    return tokens_ * static_cast<double>(m_.layers * channels) * element_ / static_cast<double>(p_.tp);
  }

  const PlanRequest& q_;
  const ModelCost& cost_;
  const ModelConfig& m_;
  const ParallelConfig& p_;
  const ComputeRates& rates_;
  double micro_ = 1, batches_ = 1, tokens_ = 1, element_ = 2;  // tokens_: tokens of one rank in a micro-batch
};

}  // namespace

void sort_by_estimate(std::vector<PlanRequest>& layouts) {
  if (layouts.empty()) return;
  const ModelCost cost(with_attention_at(layouts.front().config.model.resolved(), kAfterAllTokens));
  std::vector<std::pair<Estimate, std::size_t>> order;
  for (std::size_t i = 0; i < layouts.size(); ++i) order.emplace_back(Estimator(layouts[i], cost).estimate(), i);
  std::ranges::stable_sort(order, [](const auto& a, const auto& b) {
    return std::pair(!a.first.fits, a.first.seconds) < std::pair(!b.first.fits, b.first.seconds);
  });
  std::vector<PlanRequest> sorted;
  for (const auto& [estimate, i] : order) sorted.push_back(std::move(layouts[i]));
  layouts = std::move(sorted);
}

}  // namespace ring
