#include "parallel/state_memory.h"

#include "parallel/weights.h"

namespace ring {

StateMemory state_memory(Model& model, int zero, int ranks, int rank, const ParamTypes& types,
                         const StateBytes& state_bytes) {
  const auto bytes = [](std::int64_t elements, DType type) {
    return static_cast<std::uint64_t>(elements) * size_of(type);
  };
  model.parameters().lay_out();
  const int shared = ranks > 1 ? zero : 0;  // with one rank, as in DataParallel, everything is as with zero = 0
  const Parameters& params = model.parameters();
  const std::int64_t all = params.encoded_begin();
  std::int64_t plain = all, trained = params.trained_size(), in_buffers = 0, weight_buffers = 0;
  OwnedShard owned = own_everything(params);
  const bool on_host = types.on_host == HostParams::weights, gathered = shared == 3 || on_host;
  std::vector<ShardPiece> plan = owned.pieces;
  if (shared > 0) {
    plan = plan_shards(params, ranks);
    owned.size = shard_size(plan, rank);
    owned.pieces = pieces_of_rank(plan, rank);
    plain = encoded_begin(plan, rank);
    trained = trained_size(plan, rank);
  }
  if (shared > 0 || gathered) {
    const FsdpUnits units = make_fsdp_units(model, plan);
    for (const std::int64_t buffer : units.buffers) in_buffers += buffer;
    for (const std::int64_t buffer : weight_buffer_bytes(units, types.weights)) weight_buffers += buffer;
  }
  const std::int64_t own = owned.size;
  StateMemory m;
  m.weights = bytes(gathered ? plain : all, types.weights) +
              static_cast<std::uint64_t>(EncodedWeights::device_bytes(params, owned.pieces, shared == 3));
  if (types.weights != types.master) m.master = bytes(plain, types.master);
  m.exact = bytes(own - plain, types.master);
  if (!types.trainable) return m;
  m.gradients = bytes(shared >= 2 ? trained : params.trained_size(), types.gradients);
  m.optimizer_states = state_bytes(owned);
  m.owned = std::move(owned);
  m.snapshot = bytes(own, types.master) + m.optimizer_states;
  if (shared >= 2) m.gradient_buffers = bytes(in_buffers, types.gradients);
  if (gathered) m.weight_buffers = static_cast<std::uint64_t>(weight_buffers);
  return m;
}

}  // namespace ring
