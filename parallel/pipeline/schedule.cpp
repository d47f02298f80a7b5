#include "parallel/pipeline/schedule.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "core/check.h"

namespace ring {
namespace {

constexpr std::int64_t kPending = -1;

// End times of all actions, by part and unit; kPending if an action has not run yet.
class EndTimes {
 public:
  explicit EndTimes(const PipelineShape& shape)
      : shape_(shape), ends_(2 * static_cast<std::size_t>(shape.all_parts() * shape.units()), kPending) {}

  std::int64_t& of(const PipelineAction& a) {
    const int passes = a.pass == PipelinePass::backward ? shape_.all_parts() : 0;
    return ends_.at(static_cast<std::size_t>((passes + a.part) * shape_.units() + a.unit));
  }

  // Returns the time at which all actions that `a` depends on have ended; nullopt if one of them has not run yet.
  std::optional<std::int64_t> ready(const PipelineAction& a) {
    std::int64_t at = 0;
    const auto needs = [&](const PipelineAction& before) {
      const std::int64_t end = of(before);
      at = at == kPending || end == kPending ? kPending : std::max(at, end);
    };
    if (a.pass == PipelinePass::forward) {
      if (a.part > 0) needs({PipelinePass::forward, a.part - 1, a.unit});
      if (a.unit % shape_.slices > 0) needs({PipelinePass::forward, a.part, a.unit - 1});
    } else {
      needs({PipelinePass::forward, a.part, a.unit});
      if (a.part + 1 < shape_.all_parts()) needs({PipelinePass::backward, a.part + 1, a.unit});
      if ((a.unit + 1) % shape_.slices > 0) needs({PipelinePass::backward, a.part, a.unit + 1});
    }
    return at == kPending ? std::nullopt : std::optional(at);
  }

 private:
  PipelineShape shape_;
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

std::vector<PipelineAction> actions_of_stage(const PipelineShape& s, int stage) {
  std::vector<PipelineAction> forwards, backwards;
  for (int i = 0; i < s.parts * s.units(); ++i) {
    const int group = s.parts == 1 ? i : i / (s.stages * s.parts) * s.stages;  // the group's first unit
    const int within = s.parts == 1 ? 0 : i % (s.stages * s.parts);
    const int turn = within / s.stages, unit = group + within % s.stages;
    forwards.push_back({PipelinePass::forward, turn * s.stages + stage, unit});
    backwards.push_back({PipelinePass::backward, (s.parts - 1 - turn) * s.stages + stage, s.backward_unit(unit)});
  }
  const int later = s.stages - stage - 1;  // number of stages after this one
  const int warmup = s.parts == 1 ? later + s.slices - 1 : 2 * later + (s.parts - 1) * s.stages;
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

// Returns all messages of a step, by the time at which they are sent.
std::map<std::int64_t, std::vector<StageTransfer>> transfers_of(const PipelineShape& shape, const PipelineTable& table,
                                                                const PipelineTimes& times) {
  const PipelineTicks ticks;
  std::map<std::int64_t, std::vector<StageTransfer>> all;
  for (int from = 0; from < shape.stages; ++from) {
    const std::vector<PipelineAction>& actions = table[static_cast<std::size_t>(from)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const std::optional<PipelineAction> consumer = consumer_of(shape, actions[i]);
      if (!consumer) continue;
      const std::int64_t end = times.begin[static_cast<std::size_t>(from)][i] +
                               (actions[i].pass == PipelinePass::forward ? ticks.forward : ticks.backward);
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
  return parts > 1 ? PipelineOrder::interleaved : PipelineOrder::one_f_one_b;
}

PipelineTable make_pipeline_table(const PipelineShape& shape, PipelineOrder order) {
  RING_CHECK(shape.stages > 1 && shape.parts > 0 && shape.micro_batches > 0 && shape.slices > 0, "invalid pipeline: ",
             shape.stages, " stages with ", shape.parts, " parts and ", shape.micro_batches, " micro-batches of ",
             shape.slices, " slices");
  const bool interleaved = resolved_order(order, shape.parts) == PipelineOrder::interleaved;
  RING_CHECK(interleaved == (shape.parts > 1), "stages of ", shape.parts, " parts in an order that needs ",
             interleaved ? "several" : "one");
  RING_CHECK(!interleaved || shape.micro_batches % shape.stages == 0, shape.micro_batches,
             " micro-batches are no multiple of ", shape.stages, " interleaved stages");
  RING_CHECK(!interleaved || shape.slices == 1, "interleaved stages require 1 slice per micro-batch, got ",
             shape.slices);
  PipelineTable table;
  for (int stage = 0; stage < shape.stages; ++stage) table.push_back(actions_of_stage(shape, stage));
  return table;
}

PipelineTimes simulate(const PipelineShape& shape, const PipelineTable& table, const PipelineTicks& ticks) {
  EndTimes ends(shape);
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
        free[s] = times.begin[s].back() + (a.pass == PipelinePass::forward ? ticks.forward : ticks.backward);
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

// Places each message before the stage's first action that begins when the message is sent or later. The message's
// consumer begins no earlier than that, and its producer began earlier, because every action takes time.
std::vector<StageStep> lower_to_steps(const PipelineShape& shape, const PipelineTable& table, int stage) {
  const PipelineTimes times = simulate(shape, table);
  const std::map<std::int64_t, std::vector<StageTransfer>> transfers = transfers_of(shape, table, times);
  const std::vector<PipelineAction>& actions = table.at(static_cast<std::size_t>(stage));
  std::vector<StageStep> steps;
  auto next = transfers.begin();
  const auto add_messages_until = [&](std::int64_t time) {
    for (; next != transfers.end() && next->first <= time; ++next)
      for (StageStep& step : exchanges_of(next->second, stage)) steps.push_back(std::move(step));
  };
  for (std::size_t i = 0; i < actions.size(); ++i) {
    add_messages_until(times.begin[static_cast<std::size_t>(stage)][i]);
    steps.push_back({actions[i], {}, {}});
  }
  add_messages_until(times.end);
  return steps;
}

}  // namespace ring
