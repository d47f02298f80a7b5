#pragma once
// How the weights of all parameters come from their owners to those who compute with them.

#include <optional>

#include "parallel/fsdp_units.h"
#include "parallel/owned_shard.h"

namespace ring {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual void updated(const ExecContext&) = 0;  // the owners' weights are new
  // Before a part of the model runs; orders the stream after the arrival of its parameters.
  virtual void need(std::size_t part, ScopePass, const ExecContext&) = 0;
  virtual std::size_t bytes() const = 0;  // of buffers beside the shard's
};

// ZeRO-1 and 2: every rank has all weights; the owners send the new ones unit by unit after each update, and the next
// forward pass waits for each at its first use.
class WeightBroadcast final : public WeightSource {
 public:
  // all: the flat weights of all parameters, to which their values are bound.
  WeightBroadcast(Communicator&, const FsdpUnits&, const Tensor& all);
  void updated(const ExecContext&) override;
  void need(std::size_t part, ScopePass, const ExecContext&) override;
  std::size_t bytes() const override { return 0; }

 private:
  Communicator& comm_;
  const FsdpUnits& units_;
  Tensor all_;
  std::vector<std::optional<Work>> under_way_;  // by unit
};

// ZeRO-3: weights exist at their owners only. A unit is gathered into its buffer ahead of its use, while the part
// before it computes, in the forward and again in the backward.
class WeightGather final : public WeightSource {
 public:
  // Binds every value to its place in the buffers. own: this rank's weights.
  WeightGather(Communicator&, const FsdpUnits&, const ExecContext&, const FlatBuffer& own);
  void updated(const ExecContext&) override;
  void need(std::size_t part, ScopePass, const ExecContext&) override;
  std::size_t bytes() const override;

 private:
  struct WeightBuffer {
    Tensor tensor;
    std::optional<std::size_t> unit;  // whose weights are here, or on their way
    std::optional<Work> under_way;
  };
  void gather(std::size_t part, ScopePass, const ExecContext&);

  Communicator& comm_;
  const FsdpUnits& units_;
  FlatBuffer own_;
  std::vector<WeightBuffer> buffers_;  // by buffer
};

}  // namespace ring
