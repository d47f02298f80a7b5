#include "optim/optimizer.h"

#include "core/host_tensor.h"
#include "optim/kinds.h"

namespace ring {
namespace {

bool values_travel(const OptimizerConfig& config, bool copies) { return config.offload == StateOffload::all && copies; }

std::vector<OptimizerState> make_states(const OptimizerConfig& config, const UpdateRule& rule, const OwnedShard& shard,
                                        const ExecContext& ctx) {
  std::vector<OptimizerState> states;
  for (const StateKind& kind : rule.states()) {
    const Tensor flat = config.offload == StateOffload::none ? ctx.zeros({shard.size}, kind.type, Lifetime::run)
                                                             : host_tensor({shard.size}, kind.type, ctx.stream);
    states.push_back({kind.name, shard.shard(flat)});
  }
  return states;
}

}  // namespace

Optimizer::Optimizer(const OptimizerConfig& config, const OwnedShard& shard, std::uint64_t seed, const ExecContext& ctx)
    : rule_(optimizer_kind(config)(config, seed)),
      shard_(shard),
      ranges_(shard.ranges()),
      states_(make_states(config, *rule_, shard, ctx)),
      config_(config),
      values_travel_(values_travel(config, shard.copies())) {
  set_staging(config.offload_staging_bytes, ctx);
}

std::vector<Tensor> Optimizer::on_host() const {
  std::vector<Tensor> away;
  if (config_.offload == StateOffload::none) return away;
  for (const OptimizerState& s : states_) away.push_back(s.buffer.flat);
  if (values_travel_) away.push_back(shard_.values.flat);
  return away;
}

void Optimizer::set_staging(std::int64_t bytes, const ExecContext& ctx) {
  chunks_.reset();  // its copies are done, and its memory is free
  if (std::vector<Tensor> away = on_host(); !away.empty())
    chunks_.emplace(std::move(away), HostChunks::Bytes{config_.offload_chunk_bytes, bytes}, ctx.stream);
}

void Optimizer::settle(const Stream& stream) const {
  if (chunks_) chunks_->settle(stream);
}

void Optimizer::join() {
  if (chunks_) chunks_->join();
}

void Optimizer::begin_step() {
  if (chunks_) chunks_->begin();
}

void Optimizer::update(const Tensor& step, const ExecContext& ctx) {
  if (chunks_)
    return chunks_->change([&](std::int64_t first, std::int64_t n, const std::vector<Tensor>& here) {
      update_elements(first, n, here, step, ctx);
    });
  RING_CHECK(on_host().empty(), "states on the host have no chunks on the device");
  std::vector<Tensor> here;
  for (const OptimizerState& s : states_) here.push_back(s.buffer.flat);
  update_elements(0, shard_.size, here, step, ctx);
}

// here: elements [first, first + n) of the shard's states, and of its values where they travel.
void Optimizer::update_elements(std::int64_t first, std::int64_t n, const std::vector<Tensor>& here, const Tensor& step,
                                const ExecContext& ctx) const {
  for (const UpdateRange& range : ranges_) {
    const UpdateRange part = range.within(first, n);
    if (part.numel == 0) continue;
    ParameterUpdate u = arguments(part, first, here);
    u.step = step;
    rule_->update(u, ctx);
  }
}

ParameterUpdate Optimizer::arguments(const UpdateRange& part, std::int64_t first,
                                     const std::vector<Tensor>& here) const {
  const auto of = [&](const Tensor& t) { return t.narrow(0, part.first.shard_offset - first, part.numel); };
  ParameterUpdate u;
  u.values = values_travel_ ? of(here.back()) : part.of(shard_.values);
  u.gradients = part.of(shard_.gradients);
  for (std::size_t i = 0; i < states_.size(); ++i) u.states.push_back(of(here[i]));
  if (shard_.copies()) u.weights = part.of(shard_.weights);
  u.decay = part.decay;
  u.first_element = part.first.offset;
  return u;
}

std::size_t Optimizer::state_bytes() const {
  std::size_t bytes = 0;
  for (const OptimizerState& s : states_) bytes += s.buffer.flat.bytes();
  return bytes;
}

std::size_t Optimizer::device_bytes() const { return chunks_ ? chunks_->device_bytes() : state_bytes(); }

std::size_t Optimizer::host_bytes() const { return chunks_ ? chunks_->host_bytes() : 0; }

std::uint64_t state_bytes(const OptimizerConfig& config) {
  std::uint64_t bytes = 0;
  for (const StateKind& kind : optimizer_kind(config)(config, 0)->states()) bytes += size_of(kind.type);
  return bytes;
}

std::uint64_t staging_bytes(const OptimizerConfig& config, std::int64_t elements, bool copies) {
  const std::uint64_t states = config.offload == StateOffload::none ? 0 : state_bytes(config);
  const std::uint64_t bytes = states + (values_travel(config, copies) ? size_of(config.master) : 0);
  const HostChunks::Bytes travelling{config.offload_chunk_bytes, config.offload_staging_bytes};
  return bytes ? HostChunks::device_bytes(elements, static_cast<std::int64_t>(bytes), travelling) : 0;
}

}  // namespace ring
