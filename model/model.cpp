#include "model/model.h"

namespace ring {

void Model::allocate(const ExecContext& ctx, std::uint64_t seed, const ParamTypes& types) {
  params_.allocate(ctx, seed, types);
  allocate_constants(ctx);
}

void Model::shard(Slice slice) {
  if (slice.size == 1) return;
  params_.shard(slice);
  on_shard();
}

}  // namespace ring
