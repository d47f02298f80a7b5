#pragma once
// Distribution of weights from their owners to the ranks that compute with them.

#include <optional>

#include "parallel/fsdp_units.h"
#include "parallel/owned_shard.h"

namespace ring {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual void on_owners_updated(const ExecContext&) = 0;  // call after the owners' weights changed; collective
  // Call before a part of the model runs: makes the stream wait for the part's parameters. Collective.
  virtual void need(std::size_t part, ScopePass, const ExecContext&) = 0;
  virtual std::size_t bytes() const = 0;  // bytes of the buffers allocated in addition to the shard
};

// ZeRO-1 and 2: every rank has all weights. After each update the owners broadcast the new weights unit by unit, and
// the next forward waits for each unit at its first use.
class WeightBroadcast final : public WeightSource {
 public:
  // flat_weights: all weights; the parameters' values are views of it.
  WeightBroadcast(Communicator&, const FsdpUnits&, const Tensor& flat_weights);
  void on_owners_updated(const ExecContext&) override;
  void need(std::size_t part, ScopePass, const ExecContext&) override;
  std::size_t bytes() const override { return 0; }

 private:
  Communicator& comm_;
  const FsdpUnits& units_;
  Tensor flat_weights_;
  std::vector<std::optional<Work>> under_way_;  // broadcasts in flight, by unit
};

// ZeRO-3: only the owners store weights. A unit is gathered into its buffer before it is used, while the previous part
// computes, once in forward and once in backward.
class WeightGather final : public WeightSource {
 public:
  // Binds every parameter's value to its slot in the buffers. own: this rank's weights.
  WeightGather(Communicator&, const FsdpUnits&, const ExecContext&, const FlatBuffer& own);
  void on_owners_updated(const ExecContext&) override;
  void need(std::size_t part, ScopePass, const ExecContext&) override;
  std::size_t bytes() const override;

 private:
  struct WeightBuffer {
    Tensor tensor;
    std::optional<std::size_t> unit;  // unit whose weights are in the buffer or in flight to it
    std::optional<Work> under_way;
  };
  void gather(std::size_t part, ScopePass, const ExecContext&);

  Communicator& comm_;
  const FsdpUnits& units_;
  FlatBuffer own_;
  std::vector<WeightBuffer> buffers_;
};

}  // namespace ring
