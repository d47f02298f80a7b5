#pragma once
// The predicted time of a step: its kernels, and the waits for messages and copies that no kernels hide.

#include <array>
#include <functional>
#include <map>
#include <utility>

#include "engine/dry_step.h"
#include "engine/memory/cost_model.h"

namespace ring {

class StepTime {
 public:
  StepTime(const DeviceRates& rates, Precision precision) : rates_(rates), precision_(precision) {}

  // Adds the amounts of a dry step, times `weight`. placed: returns a message with the placement of its group; may be
  // null.
  void add(const DryStep&, double weight, const std::function<FakeTransfer(const FakeTransfer&)>& placed = {});
  // Call once, after add(). step: the dry step whose memory is planned; micro_batches: of one replica.
  void finish(const DryStep& step, int micro_batches);

  double compute_seconds() const { return spent_[products] + spent_[attention] + spent_[memory] + spent_[calls]; }
  double attention_seconds() const { return spent_[attention]; }
  double exposed_seconds() const { return spent_[messages] + spent_[copies]; }
  double seconds_of_part(const ScopeId& part) const;  // time of the kernels of a model part, in all passes
  const char* largest_part() const;                   // e.g. "matrix products", "messages between nodes"

 private:
  // Parts of a step's time: kernels by what limits them (GEMM FLOPs, attention FLOPs, memory traffic, launch time), and
  // waits for messages and for copies to and from the host.
  enum Part { products, attention, memory, calls, messages, copies, kParts };
  using Pass = std::pair<ScopeId, ScopePass>;

  void add(const DryCall&, double weight);
  void add(const DryTransfer&, const FakeTransfer&, double weight);
  double exposed_messages() const;
  double exposed_states(const DryStep&, double computing, double update) const;
  double exposed_copies(const DryStep&, int micro_batches) const;

  DeviceRates rates_;
  Precision precision_;
  std::array<double, kParts> spent_{};
  std::map<Pass, double> computing_, exchanges_;  // seconds of a pass's kernels and of its exchanges
  double tensor_ = 0, data_ = 0;                  // seconds of tensor-parallel and of data-parallel messages
  double delays_ = 0;                             // seconds by which data-parallel messages delay concurrent kernels
  double inside_nodes_ = 0, between_nodes_ = 0;   // seconds of all messages, by the link that limits them
};

}  // namespace ring
