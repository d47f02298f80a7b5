#include "parallel/state_memory.h"

#include "parallel/fsdp_units.h"

namespace ring {

StateMemory state_memory(Decoder& model, int zero, int ranks, int rank, const ParamTypes& types,
                         std::uint64_t state_bytes) {
  const auto bytes = [](std::int64_t elements, DType type) {
    return static_cast<std::uint64_t>(elements) * size_of(type);
  };
  model.parameters().lay_out();
  const int shared = ranks > 1 ? zero : 0;  // see DataParallel
  const std::int64_t all = model.parameters().size();
  std::int64_t own = all, in_buffers = 0;
  if (shared > 0) {
    const std::vector<ShardPiece> plan = plan_shards(model.parameters(), ranks);
    own = shard_size(plan, rank);
    for (const std::int64_t buffer : make_fsdp_units(model, plan).buffers) in_buffers += buffer;
  }
  StateMemory m;
  m.weights = bytes(shared == 3 ? own : all, types.weights);
  if (types.weights != types.master) m.master = bytes(own, types.master);
  if (!types.trainable) return m;
  m.owned = own;
  m.gradients = bytes(shared >= 2 ? own : all, types.gradients);
  m.optimizer_states = static_cast<std::uint64_t>(own) * state_bytes;
  m.snapshot = bytes(own, types.master) + m.optimizer_states;
  if (shared >= 2) m.gradient_buffers = bytes(in_buffers, types.gradients);
  if (shared == 3) m.weight_buffers = bytes(in_buffers, types.weights);
  return m;
}

}  // namespace ring
