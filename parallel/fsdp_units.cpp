#include "parallel/fsdp_units.h"

#include <algorithm>

namespace ring {
namespace {

std::size_t find_unit(const FsdpUnits& u, const Param* p) {
  for (std::size_t i = 0; i < u.units.size(); ++i)
    if (std::find(u.units[i].params.begin(), u.units[i].params.end(), p) != u.units[i].params.end()) return i;
  return u.units.size();
}

void add_param(FsdpUnit& unit, Param* p) {
  unit.params.push_back(p);
  unit.param_offsets.push_back(unit.size);
  unit.size += param_aligned(p->shape.numel());
  unit.only_tables &= p->table;
}

void add_part(FsdpUnits& u, const ModelPart& part) {
  const std::size_t number = u.parts.size();
  u.parts.push_back(part.scope);
  std::vector<std::size_t>& used = u.units_of_part.emplace_back();
  std::optional<std::size_t> fresh;  // the new unit, for parameters that no earlier part uses
  ParamList params = part.params;    // sorted, so that parameters that are adjacent in the flat layout stay adjacent
  std::ranges::sort(params, {}, &Param::offset);
  for (Param* p : params) {
    if (!p->held) continue;
    std::size_t at = find_unit(u, p);
    if (at == u.units.size()) {
      if (!fresh) {
        fresh = at;
        u.units.push_back({.scope = part.scope, .only_tables = true, .first_part = number});
      }
      add_param(u.units[at = *fresh], p);
    }
    u.units[at].last_part = number;
    if (std::find(used.begin(), used.end(), at) == used.end()) used.push_back(at);
  }
}

// Returns the buffer's key: units with equal keys share a buffer.
ScopeId buffer_key(const FsdpUnit& unit) {
  if (unit.only_tables) return {};
  return {unit.scope.kind, unit.scope.number % 2};
}

void place_buffers(FsdpUnits& u) {
  std::vector<ScopeId> keys;
  for (FsdpUnit& unit : u.units) {
    const ScopeId key = buffer_key(unit);
    unit.buffer = static_cast<int>(std::find(keys.begin(), keys.end(), key) - keys.begin());
    if (unit.buffer == static_cast<int>(keys.size())) {
      keys.push_back(key);
      u.buffers.push_back(0);
    }
    std::int64_t& size = u.buffers[static_cast<std::size_t>(unit.buffer)];
    size = std::max(size, unit.size);
  }
}

}  // namespace

std::optional<std::size_t> FsdpUnits::find_part(const ScopeId& scope) const {
  const auto it = std::find(parts.begin(), parts.end(), scope);
  if (it == parts.end()) return {};
  return static_cast<std::size_t>(it - parts.begin());
}

FsdpUnits make_fsdp_units(const Model& model, const std::vector<ShardPiece>& plan) {
  FsdpUnits u;
  u.slice = model.parameters().slice();
  for (const ModelPart& part : model.parts()) add_part(u, part);
  for (const ShardPiece& piece : plan) {
    const std::size_t at = find_unit(u, piece.param);
    RING_CHECK(at < u.units.size(), "no part of the model uses ", piece.param->parts[0].name);
    FsdpUnit& unit = u.units[at];
    const auto i = std::find(unit.params.begin(), unit.params.end(), piece.param) - unit.params.begin();
    const std::int64_t param_offset = unit.param_offsets[static_cast<std::size_t>(i)];
    unit.pieces.push_back({piece, param_offset + piece.offset - piece.param->offset});
  }
  place_buffers(u);
  return u;
}

}  // namespace ring
