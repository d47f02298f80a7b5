#pragma once
// Units: the parameters of one part of the model (a block, the embedding, the head), which are all-gathered, reduced
// and overwritten together. Each unit has a fixed buffer: blocks alternate between two buffers, tables share one, every
// other unit has its own. So a parameter's address never changes.

#include <optional>
#include <vector>

#include "model/model.h"
#include "parallel/shard_plan.h"

namespace ring {

struct FsdpUnitPiece {
  ShardPiece piece;
  std::int64_t offset_in_buffer = 0;  // first element in the unit's gradient buffer
};

struct FsdpUnit {
  ScopeId scope;  // scope of the first part that uses the unit
  std::vector<Param*> params{};
  std::vector<std::int64_t> param_offsets{};  // offsets of the parameters in the gradient buffer
  std::vector<FsdpUnitPiece> pieces{};        // the pieces of all ranks
  std::int64_t size = 0;                      // elements of the unit in its gradient buffer
  int buffer = 0;                             // index in FsdpUnits::buffers
  bool only_tables = false;                   // true if all parameters are tables
  std::size_t first_part = 0, last_part = 0;  // first and last part that use the unit, in forward order
};

struct FsdpUnits {
  std::vector<FsdpUnit> units;                          // ordered by first use
  std::vector<ScopeId> parts;                           // parts of the model, in forward order
  std::vector<std::vector<std::size_t>> units_of_part;  // indices of the units that each part uses
  std::vector<std::int64_t> buffers;                    // elements of each gradient buffer
  Slice slice{};                                        // the tensor-parallel slice of the model

  std::optional<std::size_t> find_part(const ScopeId&) const;  // nullopt if the scope is not a part of the model
};

FsdpUnits make_fsdp_units(const Model&, const std::vector<ShardPiece>& plan);

}  // namespace ring
