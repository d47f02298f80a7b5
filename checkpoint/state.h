#pragma once
// What a run is made of: every tensor and every counter that must survive a restart, by name. Each part of the trainer
// adds what it owns; saving reads the registry and loading fills it. A name that only one side knows is an error, so
// nothing can be forgotten without notice.
//
// Names are dotted ("model.layers.0.wq", "optimizer.wq.m", "data.cursor"): letters, digits and . _ - : only.

#include <cstdint>
#include <map>
#include <string>
#include <variant>

#include "core/tensor.h"

namespace ring {

// This rank's part of a tensor: the box [start, start + local.shape()) of the whole, in elements. Ranks that hold the
// same box hold the same values; one of them writes it.
struct StateTensor {
  std::string name;
  Shape global_shape;
  Shape start;
  Tensor local;  // contiguous, on any device; loading writes into its bytes
};

// Values are the same on every rank. Strings are UTF-8 text; other bytes belong in a u8 tensor.
using StateValue = std::variant<std::int64_t, std::uint64_t, double, std::string>;
using StateSlot = std::variant<std::int64_t*, std::uint64_t*, double*, std::string*>;

class State {
 public:
  void add(const std::string& name, const Tensor& tensor);  // the same whole tensor on every rank
  void add(StateTensor tensor);                             // Error: name taken, box outside the whole, strided
  void add(const std::string& name, StateSlot value);       // the owner keeps *value alive as long as the registry

  const std::map<std::string, StateTensor>& tensors() const { return tensors_; }
  const std::map<std::string, StateSlot>& values() const { return values_; }
  std::uint64_t bytes() const;  // of all local tensors

 private:
  void claim(const std::string& name) const;

  std::map<std::string, StateTensor> tensors_;
  std::map<std::string, StateSlot> values_;
};

StateValue read_slot(const StateSlot&);

}  // namespace ring
