#include "engine/step_time.h"

#include <algorithm>

namespace ring {
namespace {

// Delay that an overlapped collective causes to the kernels running concurrently, as a fraction of the collective's
// time: NCCL's kernels occupy multiprocessors and use memory bandwidth. Fitted to steps of Llama 8B with ZeRO-3 on two
// and four GPUs (docs/measured/plans.md).
constexpr double kCollectiveDelay = 0.6;

// Prefix of the names of the groups that sum gradients (kDataAxes).
constexpr const char* kDataGroup = "dp x cp";

}  // namespace

void StepTime::add(const DryCall& c, double weight) {
  const double s = seconds_of(rates_, precision_, c.slot, c.cost);
  const bool of_attention = c.slot.starts_with("attention"), of_memory = !(s > c.cost.bytes / rates_.bytes_per_second);
  spent_[s <= rates_.call_seconds ? calls : of_attention ? attention : of_memory ? memory : products] += weight * s;
  computing_[{c.part, c.pass}] += weight * s;
}

void StepTime::add(const DryTransfer& t, const FakeTransfer& placed, double weight) {
  const double s = weight * seconds_of(rates_, placed);
  const double between = weight * seconds_between_nodes(rates_, placed);
  (between != 0 && between == s ? between_nodes_ : inside_nodes_) += s;
  if (placed.operation == "exchange" && !placed.group.starts_with(kDataGroup))
    exchanges_[{t.part, t.pass}] += s;
  else if (placed.group == "tp")
    tensor_ += s;
  else
    data_ += s, delays_ += kCollectiveDelay * weight * seconds_inside_node(rates_, placed);
}

void StepTime::add(const DryStep& step, double weight, const std::function<FakeTransfer(const FakeTransfer&)>& placed) {
  for (const DryCall& c : step.calls) add(c, weight);
  for (const DryTransfer& t : step.transfers) add(t, placed ? placed(t.transfer) : t.transfer, weight);
}

void StepTime::finish(const DryStep& step, int micro_batches) {
  spent_[messages] = exposed_messages();
  spent_[copies] = exposed_copies(step, micro_batches);
}

double StepTime::seconds_of_part(const ScopeId& part) const {
  double all = 0;
  for (const auto& [pass, s] : computing_) all += pass.first == part ? s : 0;
  return all;
}

// Exchanges (keys, values, rows of shards) overlap with the part that needs them. Data-parallel transfers of gradients
// and weights overlap with all computation, but delay it. Tensor-parallel collectives do not overlap.
double StepTime::exposed_messages() const {
  double all = 0, waited = tensor_;
  for (const auto& [pass, s] : computing_) all += s;
  for (const auto& [pass, s] : exchanges_) {
    const auto computing = computing_.find(pass);
    waited += std::max(0.0, s - (computing == computing_.end() ? 0 : computing->second));
  }
  return waited + std::max(delays_, data_ - all);
}

// Returns the seconds that the update waits for offloaded states, which are copied in both directions at once. Chunks
// for which the device has room are copied before the update, while the step computes and the link is free.
double StepTime::exposed_states(const DryStep& step, double computing, double update) const {
  const double rate = rates_.host_bytes_per_second;
  const double ring = std::min(static_cast<double>(step.optimizer_states), rate * std::max(0.0, computing));
  return step.host_states == 0 ? 0 : std::max(0.0, (static_cast<double>(step.host_states) - ring) / rate - update);
}

// Returns the seconds that parts wait for offloaded activations and weights. During a part's forward, the activations
// of the previous part are copied to the host, and the weights of the next part to the device. During a part's
// backward, the activations and weights of the previous part, whose backward is next, are copied to the device.
double StepTime::exposed_copies(const DryStep& step, int micro_batches) const {
  if (rates_.host_bytes_per_second == 0) return 0;
  const auto seconds = [&](std::size_t bytes) {
    return micro_batches * static_cast<double>(bytes) / rates_.host_bytes_per_second;
  };
  double waited = 0, update = 0, rest = 0;
  const auto wait = [&](std::size_t part, ScopePass pass, double copying) {
    const auto computing = computing_.find({step.parts[part].part, pass});
    waited += std::max(0.0, copying - (computing == computing_.end() ? 0 : computing->second));
  };
  for (std::size_t i = 0; i < step.parts.size(); ++i) {
    const double kept = i > 0 ? seconds(step.parts[i - 1].host) : 0;
    const double before = i > 0 ? seconds(step.parts[i - 1].weights_again) : 0;
    const double next = i + 1 < step.parts.size() ? seconds(step.parts[i + 1].weights) : 0;
    wait(i, ScopePass::forward, std::max(kept, next));
    wait(i, ScopePass::backward, kept + before);
    rest -= kept + before + next;
  }
  for (const auto& [pass, s] : computing_) (pass.first.kind == scopes::optimizer ? update : rest) += s;
  return waited + exposed_states(step, rest, update);
}

const char* StepTime::largest_part() const {
  constexpr std::array<const char*, kParts> kNames = {"matrix products",  "attention", "memory traffic",
                                                      "starting kernels", "messages",  "copies to the host"};
  const auto part = static_cast<std::size_t>(std::ranges::max_element(spent_) - spent_.begin());
  return part == messages && between_nodes_ > inside_nodes_ ? "messages between nodes" : kNames[part];
}

}  // namespace ring
