#include "parallel/pipeline/schedule.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "core/check.h"

namespace ring {
namespace {

constexpr std::int64_t kPending = -1;

std::int64_t duration(const PipelineAction& a, const PipelineTicks& ticks) {
  return a.pass == PipelinePass::forward ? ticks.forward : ticks.backward;
}

// End times of all actions, by part and unit; kPending if an action has not run yet.
class EndTimes {
 public:
  EndTimes(const PipelineShape& shape, std::int64_t message)
      : shape_(shape),
        message_(message),
        ends_(2 * static_cast<std::size_t>(shape.all_parts() * shape.units()), kPending) {}

  std::int64_t& of(const PipelineAction& a) {
    const int passes = a.pass == PipelinePass::backward ? shape_.all_parts() : 0;
    return ends_.at(static_cast<std::size_t>((passes + a.part) * shape_.units() + a.unit));
  }

  // Returns the time at which all actions that `a` depends on have ended and their messages have arrived; nullopt if
  // one of them has not run yet.
  std::optional<std::int64_t> ready(const PipelineAction& a) {
    std::int64_t at = 0;
    const auto needs = [&](const PipelineAction& before, std::int64_t message = 0) {
      const std::int64_t end = of(before);
      at = at == kPending || end == kPending ? kPending : std::max(at, end + message);
    };
    if (a.pass == PipelinePass::forward) {
      if (a.part > 0) needs({PipelinePass::forward, a.part - 1, a.unit}, message_);
      if (a.unit % shape_.slices > 0) needs({PipelinePass::forward, a.part, a.unit - 1});
    } else {
      needs({PipelinePass::forward, a.part, a.unit});
      if (a.part + 1 < shape_.all_parts()) needs({PipelinePass::backward, a.part + 1, a.unit}, message_);
      if ((a.unit + 1) % shape_.slices > 0) needs({PipelinePass::backward, a.part, a.unit + 1});
    }
    return at == kPending ? std::nullopt : std::optional(at);
  }

 private:
  PipelineShape shape_;
  std::int64_t message_;
  std::vector<std::int64_t> ends_;
};

// Orders a stage's actions: first `warmup` forwards, then forwards and backwards in turn, then the other backwards.
std::vector<PipelineAction> alternate(const std::vector<PipelineAction>& forwards,
                                      const std::vector<PipelineAction>& backwards, std::size_t warmup) {
  std::vector<PipelineAction> all(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(warmup));
  std::size_t done = 0;
  for (std::size_t i = warmup; i < forwards.size(); ++i) {
    all.push_back(forwards[i]);
    all.push_back(backwards[done++]);
  }
  all.insert(all.end(), backwards.begin() + static_cast<std::ptrdiff_t>(done), backwards.end());
  return all;
}

std::vector<PipelineAction> actions_of_stage(const PipelineShape& s, PipelineOrder order, int stage) {
  std::vector<PipelineAction> forwards, backwards;
  for (int i = 0; i < s.parts * s.units(); ++i) {
    const int group = s.parts == 1 ? i : i / (s.stages * s.parts) * s.stages;  // the group's first unit
    const int within = s.parts == 1 ? 0 : i % (s.stages * s.parts);
    const int turn = within / s.stages, unit = group + within % s.stages;
    forwards.push_back({PipelinePass::forward, turn * s.stages + stage, unit});
    backwards.push_back({PipelinePass::backward, (s.parts - 1 - turn) * s.stages + stage, s.backward_unit(unit)});
  }
  const int later = s.stages - stage - 1;  // number of stages after this one
  const int ahead = order == PipelineOrder::one_f_one_b ? later : 2 * later;
  const int warmup = ahead + s.slices - 1 + (s.parts - 1) * s.stages;
  return alternate(forwards, backwards, std::min(static_cast<std::size_t>(warmup), forwards.size()));
}

// Returns the action of the adjacent part that needs the result of `a`; nullopt if there is none.
std::optional<PipelineAction> consumer_of(const PipelineShape& shape, const PipelineAction& a) {
  const int part = a.pass == PipelinePass::forward ? a.part + 1 : a.part - 1;
  if (part < 0 || part == shape.all_parts()) return {};
  return PipelineAction{a.pass, part, a.unit};
}

struct StageTransfer {
  int from, to;
  PipelineAction consumer;
};

using Transfers = std::map<std::int64_t, std::vector<StageTransfer>>;  // by the time at which they are sent

// Returns all messages of a step.
Transfers transfers_of(const PipelineShape& shape, const PipelineTable& table, const PipelineTimes& times,
                       const PipelineTicks& ticks) {
  Transfers all;
  for (int from = 0; from < shape.stages; ++from) {
    const std::vector<PipelineAction>& actions = table[static_cast<std::size_t>(from)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const std::optional<PipelineAction> consumer = consumer_of(shape, actions[i]);
      if (!consumer) continue;
      const std::int64_t end = times.begin[static_cast<std::size_t>(from)][i] + duration(actions[i], ticks);
      all[end].push_back({from, shape.stage_of(consumer->part), *consumer});
    }
  }
  return all;
}

// Returns true if a stage would receive two messages, a hidden state and a gradient.
bool receives_two(const std::vector<StageTransfer>& transfers) {
  std::set<int> receivers;
  return std::ranges::any_of(transfers, [&](const StageTransfer& t) { return !receivers.insert(t.to).second; });
}

// Returns the steps of a stage for messages that are sent at the same time: one step for all of them or, if any stage
// would receive two, one for the hidden states and then one for the gradients. A stage ends at most one action at a
// time, so it sends at most one message, and each kind of message comes from a single stage.
std::vector<StageStep> exchanges_of(const std::vector<StageTransfer>& transfers, int stage) {
  if (std::ranges::none_of(transfers, [&](const StageTransfer& t) { return t.from == stage || t.to == stage; }))
    return {};
  std::map<PipelinePass, StageStep> steps;
  const bool apart = receives_two(transfers);
  for (const StageTransfer& t : transfers) {
    if (t.from != stage && t.to != stage) continue;
    StageStep& step = steps[apart ? t.consumer.pass : PipelinePass::forward];
    if (t.from == stage) step.send = {t.consumer, t.to};
    if (t.to == stage) step.receive = {t.consumer, t.from};
  }
  std::vector<StageStep> all;
  for (auto& [pass, step] : steps) all.push_back(std::move(step));
  return all;
}

}  // namespace

PipelineOrder resolved_order(PipelineOrder order, std::int64_t parts) {
  if (order != PipelineOrder::automatic) return order;
  return parts > 1 ? PipelineOrder::interleaved : kDefaultOrder;
}

// Two stages have two messages per unit, which can take half of a forward and backward each. A stage between two others
// has four messages. If messages take as long as forwards, all stages send at the same time, so that each of them has
// two operations per unit, a send together with a receive.
PipelineTicks ticks_of_messages(PipelineOrder order, const PipelineShape& shape) {
  if (resolved_order(order, shape.parts) != PipelineOrder::eager_1f1b) return {};
  return {.forward = 2, .backward = 4, .message = shape.stages == 2 ? 3 : 2};
}

PipelineTable make_pipeline_table(const PipelineShape& shape, PipelineOrder order) {
  RING_CHECK(shape.stages > 1 && shape.parts > 0 && shape.micro_batches > 0 && shape.slices > 0,
             "invalid pipeline: ", shape.stages, " stages with ", shape.parts, " parts and ", shape.micro_batches,
             " micro-batches of ", shape.slices, " slices");
  order = resolved_order(order, shape.parts);
  const bool interleaved = order == PipelineOrder::interleaved;
  RING_CHECK(interleaved == (shape.parts > 1), "stages of ", shape.parts, " parts in an order that needs ",
             interleaved ? "several" : "one");
  RING_CHECK(!interleaved || shape.micro_batches % shape.stages == 0, shape.micro_batches,
             " micro-batches are no multiple of ", shape.stages, " interleaved stages");
  RING_CHECK(!interleaved || shape.slices == 1, "interleaved stages require 1 slice per micro-batch, got ",
             shape.slices);
  PipelineTable table;
  for (int stage = 0; stage < shape.stages; ++stage) table.push_back(actions_of_stage(shape, order, stage));
  return table;
}

PipelineTimes simulate(const PipelineShape& shape, const PipelineTable& table, const PipelineTicks& ticks) {
  EndTimes ends(shape, ticks.message);
  PipelineTimes times;
  times.begin.resize(table.size());
  std::vector<std::int64_t> free(table.size(), 0);
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t s = 0; s < table.size(); ++s)
      while (times.begin[s].size() < table[s].size()) {
        const PipelineAction& a = table[s][times.begin[s].size()];
        const std::optional<std::int64_t> ready = ends.ready(a);
        if (!ready) break;
        times.begin[s].push_back(std::max(*ready, free[s]));
        free[s] = times.begin[s].back() + duration(a, ticks);
        ends.of(a) = free[s];
        times.end = std::max(times.end, free[s]);
        progress = true;
      }
  }
  for (std::size_t s = 0; s < table.size(); ++s)
    RING_CHECK(times.begin[s].size() == table[s].size(), "stage ", s, " of the pipeline waits forever before action ",
               times.begin[s].size(), " of ", table[s].size());
  return times;
}

int max_in_flight(const std::vector<PipelineAction>& actions) {
  int now = 0, most = 0;
  for (const PipelineAction& a : actions) most = std::max(most, now += a.pass == PipelinePass::forward ? 1 : -1);
  return most;
}

int max_micro_batches_in_flight(const PipelineShape& shape, const std::vector<PipelineAction>& actions) {
  std::map<int, int> left;  // remaining backwards of each micro-batch that has begun
  std::size_t most = 0;
  for (const PipelineAction& a : actions) {
    const int micro = a.unit / shape.slices;
    if (a.pass == PipelinePass::forward)
      left.try_emplace(micro, shape.parts * shape.slices);
    else if (--left.at(micro) == 0)
      left.erase(micro);
    most = std::max(most, left.size());
  }
  return static_cast<int>(most);
}

double bubble(const PipelineShape& s) {
  return static_cast<double>(s.stages - 1) / static_cast<double>(s.parts * s.units() + s.stages - 1);
}

namespace {

// Places a send before the stage's first action that begins when the message is sent or later, and a receive before the
// first action that ends later than that (if messages take no time, like a send). The message's consumer ends later and
// begins no earlier, and its producer ended earlier. Every step needs only actions that ended by the time of its
// messages, so stages never wait in a circle. begin: of the stage's actions.
std::vector<StageStep> steps_of_stage(const std::vector<PipelineAction>& actions,
                                      const std::vector<std::int64_t>& begin, const Transfers& all_transfers, int stage,
                                      const PipelineTicks& ticks) {
  std::deque<std::pair<std::int64_t, StageStep>> messages;
  for (const auto& [time, transfers] : all_transfers)
    for (StageStep& step : exchanges_of(transfers, stage)) messages.emplace_back(time, std::move(step));
  std::vector<StageStep> steps;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const std::int64_t end = begin[i] + duration(actions[i], ticks);
    const auto is_due = [&](const auto& m) {
      return ticks.message > 0 && !m.second.send ? m.first < end : m.first <= begin[i];
    };
    for (; !messages.empty() && is_due(messages.front()); messages.pop_front())
      steps.push_back(std::move(messages.front().second));
    steps.push_back({actions[i], {}, {}});
  }
  for (auto& m : messages) steps.push_back(std::move(m.second));
  return steps;
}

// Returns the steps of the stages [first, last).
std::vector<std::vector<StageStep>> steps_of_stages(const PipelineShape& shape, const PipelineTable& table, int first,
                                                    int last, const PipelineTicks& ticks) {
  const PipelineTimes times = simulate(shape, table, ticks);
  const Transfers transfers = transfers_of(shape, table, times, ticks);
  std::vector<std::vector<StageStep>> all;
  for (int stage = first; stage < last; ++stage) {
    const auto at = static_cast<std::size_t>(stage);
    all.push_back(steps_of_stage(table.at(at), times.begin.at(at), transfers, stage, ticks));
  }
  return all;
}

// Simulates the steps of all stages with messages that take time. Each stage runs its communication one operation after
// another.
class TransferSimulation {
 public:
  TransferSimulation(const PipelineShape& shape, PipelineOrder order, const std::vector<PipelineTicks>& ticks)
      : shape_(shape), ticks_(ticks) {
    steps_ =
        steps_of_stages(shape, make_pipeline_table(shape, order), 0, shape.stages, ticks_of_messages(order, shape));
    next_.resize(steps_.size());
    clocks_.resize(steps_.size());
    free_.resize(steps_.size());
    operations_.resize(steps_.size());
  }

  std::int64_t run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t s = 0; s < steps_.size(); ++s)
        for (; next_[s] < steps_[s].size() && advance(static_cast<int>(s)); ++next_[s]) progress = true;
    }
    for (std::size_t s = 0; s < steps_.size(); ++s)
      RING_CHECK(next_[s] == steps_[s].size(), "stage ", s, " of the pipeline waits forever for a message");
    return std::ranges::max(clocks_);
  }

 private:
  struct Operation {
    std::int64_t time;                      // when the stage reaches this operation
    std::vector<PipelineAction> consumers;  // actions that need the messages of this operation
    std::size_t done = 0;                   // messages that have ended
    std::int64_t end = 0;
  };
  struct Side {
    int stage;
    std::int64_t ready;
  };

  // Returns false if the stage waits for a message.
  bool advance(int stage) {
    const StageStep& step = steps_[static_cast<std::size_t>(stage)][next_[static_cast<std::size_t>(stage)]];
    if (!step.action) return queue(stage, step), true;
    std::int64_t& clock = clocks_[static_cast<std::size_t>(stage)];
    const PipelineAction& a = *step.action;
    const bool receives = a.pass == PipelinePass::forward ? a.part > 0 : a.part + 1 < shape_.all_parts();
    if (receives) {
      const auto arrival = arrivals_.find(key(a));
      if (arrival == arrivals_.end()) return false;
      clock = std::max(clock, arrival->second);
    }
    clock += duration(a, ticks_.at(static_cast<std::size_t>(stage)));
    return true;
  }

  void queue(int stage, const StageStep& step) {
    Operation op{.time = clocks_[static_cast<std::size_t>(stage)], .consumers = {}};
    for (const auto& message : {step.send, step.receive})
      if (message) op.consumers.push_back(message->consumer);
    std::deque<Operation>& operations = operations_[static_cast<std::size_t>(stage)];
    operations.push_back(std::move(op));
    if (operations.size() == 1) begin(stage);
  }

  // Starts the stage's next operation. The transfer of each of its messages starts once the stage at the other end of
  // the message has also started the matching operation.
  void begin(int stage) {
    const auto at = static_cast<std::size_t>(stage);
    const std::int64_t ready = std::max(operations_[at].front().time, free_[at]);
    for (const PipelineAction& a : std::vector(operations_[at].front().consumers)) {
      const auto [other, first] = begun_.try_emplace(key(a), Side{stage, ready});
      if (first) continue;
      const int sender = shape_.stage_of(a.pass == PipelinePass::forward ? a.part - 1 : a.part + 1);
      const std::int64_t end =
          std::max(ready, other->second.ready) + ticks_.at(static_cast<std::size_t>(sender)).message;
      arrivals_[key(a)] = end;
      end_message(other->second.stage, end);
      end_message(stage, end);
    }
  }

  void end_message(int stage, std::int64_t end) {
    const auto at = static_cast<std::size_t>(stage);
    Operation& op = operations_[at].front();
    op.end = std::max(op.end, end);
    if (++op.done < op.consumers.size()) return;
    free_[at] = op.end;
    operations_[at].pop_front();
    if (!operations_[at].empty()) begin(stage);
  }

  using Key = std::tuple<PipelinePass, int, int>;
  static Key key(const PipelineAction& a) { return {a.pass, a.part, a.unit}; }

  PipelineShape shape_;
  std::vector<PipelineTicks> ticks_;
  std::vector<std::vector<StageStep>> steps_;
  std::vector<std::size_t> next_;
  std::vector<std::int64_t> clocks_;  // when the last action of each stage ends
  std::vector<std::int64_t> free_;    // when the last operation of each stage ends
  std::vector<std::deque<Operation>> operations_;
  std::map<Key, Side> begun_;             // messages whose transfer one of both stages has started
  std::map<Key, std::int64_t> arrivals_;  // when each message has arrived
};

}  // namespace

std::vector<StageStep> lower_to_steps(const PipelineShape& shape, const PipelineTable& table, int stage,
                                      const PipelineTicks& ticks) {
  return std::move(steps_of_stages(shape, table, stage, stage + 1, ticks).front());
}

std::int64_t simulate_transfers(const PipelineShape& shape, PipelineOrder order,
                                const std::vector<PipelineTicks>& ticks) {
  return TransferSimulation(shape, order, ticks).run();
}

}  // namespace ring
