#pragma once
// Units: the parameters of one part of the model (a block, the embedding, the head), which are gathered, reduced and
// overwritten together. A unit has its place in one of a few buffers: blocks take turns in two of them, tables share
// one, each of the others has a buffer of its own. So a parameter's address never changes.

#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "model/model.h"
#include "parallel/shard_plan.h"

namespace ring {

struct FsdpUnitPiece {
  ShardPiece piece;
  std::int64_t at = 0;  // in the unit's buffer
};

struct FsdpUnit {
  ScopeId scope;  // of the first part that uses it
  std::vector<Param*> params{};
  std::vector<std::int64_t> param_at{};  // in the unit's buffer
  std::vector<FsdpUnitPiece> pieces{};   // of all ranks
  std::int64_t size = 0;                 // elements of its buffer
  int buffer = 0;
  bool tables = false;                        // of tables only
  std::size_t first_part = 0, last_part = 0;  // that use it, in the order of the forward pass
};

struct FsdpUnits {
  std::vector<FsdpUnit> units;                  // in the order of first use
  std::vector<ScopeId> parts;                   // of the model, in the order of the forward pass
  std::vector<std::vector<std::size_t>> users;  // by part: its units
  std::vector<std::int64_t> buffers;            // elements of each

  std::optional<std::size_t> part(const ScopeId&) const;  // none: the scope is no part of the model
};

FsdpUnits make_fsdp_units(const Model&, const std::vector<ShardPiece>& plan);

// What a rank's piece of the unit is in a buffer for the unit.
std::vector<OwnedPiece> pieces_in(const FsdpUnit&, const Tensor& buffer);

}  // namespace ring
