#include "optim/optimizer.h"

#include <algorithm>
#include <utility>

#include "core/host_tensor.h"

namespace ring {
namespace {

// Blocks of FP8 moments are whole in every shard, range and chunk.
static_assert(kParamAlign == kMomentBlock && HostChunks::kBlock == kMomentBlock);

// Returns true if updates copy the values between host and device. Without separate masters, kernels read the values
// themselves, which therefore count as weights.
bool values_travel(const OptimizerConfig& config, const ParamTypes& types) {
  return config.offload >= (types.separate_master() ? StateOffload::all : StateOffload::weights);
}

// Returns true if updates also copy the weights, because they have a buffer of their own on the host.
bool weights_travel(const OptimizerConfig& config, const ParamTypes& types) {
  return config.offload == StateOffload::weights && types.separate_master();
}

ParamTypes types_of(const OwnedShard& shard) {
  return {.master = shard.values.flat.dtype(), .weights = shard.weights.flat.dtype()};
}

// Returns the bytes of a block of kParamAlign elements that an update copies between host and device; 0 if everything
// is on the device.
std::int64_t travelling_bytes(const OptimizerConfig& c, const Lane& lane, const ParamTypes& types) {
  if (c.offload == StateOffload::none || lane.size == 0) return 0;
  const std::size_t value =
      (values_travel(c, types) ? size_of(types.master) : 0) + (weights_travel(c, types) ? size_of(types.weights) : 0);
  return lane.state_bytes_per_block() + kParamAlign * static_cast<std::int64_t>(value);
}

bool overlap(const UpdateRange& range, const ShardPiece& p) {
  return range.first.offset < p.offset + p.numel && p.offset < range.first.offset + range.numel;
}

HostChunks::Pieces lane_pieces(const FlatBuffer& buffer, const Lane& lane) {
  if (lane.size == buffer.flat.numel()) return {{0, buffer.flat}};
  HostChunks::Pieces pieces;
  for (const LaneRange& r : lane.ranges) pieces.push_back({r.at, r.range.of(buffer)});
  return pieces;
}

// Returns the sizes of each lane's device buffers. Every lane gets the minimum; the rest of `staging` bytes is divided
// in proportion to the bytes that the lanes copy.
std::vector<HostChunks::Sizes> staging_of(const OptimizerConfig& c, const std::vector<Lane>& lanes,
                                          const ParamTypes& types, std::int64_t staging) {
  std::vector<HostChunks::Sizes> bytes;
  std::int64_t min = 0;
  double all = 0;
  for (const Lane& lane : lanes) {
    const std::int64_t block = travelling_bytes(c, lane, types);
    bytes.push_back({c.offload_chunk_bytes, 0});
    if (block == 0) continue;
    bytes.back().ring =
        static_cast<std::int64_t>(HostChunks::device_bytes(lane.size, block, bytes.back(), lane.chunk_ends()));
    min += bytes.back().ring;
    all += static_cast<double>(block * lane.size);
  }
  const double more = static_cast<double>(std::max<std::int64_t>(0, staging - min));
  for (std::size_t i = 0; i < lanes.size(); ++i)
    if (const std::int64_t block = travelling_bytes(c, lanes[i], types); block * lanes[i].size > 0)
      bytes[i].ring += static_cast<std::int64_t>(more * (static_cast<double>(block * lanes[i].size) / all));
  return bytes;
}

}  // namespace

Optimizer::Optimizer(const OptimizerConfig& config, const OwnedShard& shard, std::uint64_t seed, const ExecContext& ctx,
                     Communicator* slices)
    : shard_(shard),
      slices_(slices),
      config_(config),
      offloads_values_(values_travel(config, types_of(shard))),
      offloads_weights_(weights_travel(config, types_of(shard))) {
  for (Lane& lane : lanes_of(config, shard, seed)) add_lane(std::move(lane), ctx);
  set_staging(config.offload_staging_bytes, ctx);
}

void Optimizer::add_lane(Lane lane, const ExecContext& ctx) {
  LaneState state{std::move(lane), {}, nullptr};
  const Lane& l = state.lane;
  const auto zeros = [&](std::int64_t n, DType type) {
    state.states.push_back(config_.offload == StateOffload::none ? ctx.zeros({n}, type, Lifetime::run)
                                                                 : host_tensor({n}, type, ctx.stream));
    return state.states.back();
  };
  for (const StateKind& kind : l.rule->states()) {
    const Tensor flat = zeros(l.size, kind.type);
    const Tensor scales = kind.fp8 ? zeros(moment_blocks(l.size), DType::u8) : Tensor();
    states_.push_back({kind.name, l.kind, l.pieces(), shard_.as_shard(flat), kind.fp8, scales});
  }
  lanes_.push_back(std::move(state));
}

std::vector<HostChunks::Pieces> Optimizer::host_pieces(const LaneState& m) const {
  std::vector<HostChunks::Pieces> pieces;
  if (travelling_bytes(config_, m.lane, types_of(shard_)) == 0) return pieces;
  std::size_t i = 0;
  for (const StateKind& kind : m.lane.rule->states()) {
    pieces.push_back({{0, m.states[i++]}});
    if (kind.fp8) pieces.push_back({{.host = m.states[i++], .per_block = true}});
  }
  if (offloads_values_) pieces.push_back(lane_pieces(shard_.values, m.lane));
  if (offloads_weights_) pieces.push_back(lane_pieces(shard_.weights, m.lane));
  return pieces;
}

void Optimizer::set_staging(std::int64_t bytes, const ExecContext& ctx) {
  std::vector<Lane> lanes;
  for (LaneState& m : lanes_) {
    m.chunks.reset();  // waits for the copies and frees the memory
    lanes.push_back(m.lane);
  }
  const std::vector<HostChunks::Sizes> each = staging_of(config_, lanes, types_of(shard_), bytes);
  for (std::size_t i = 0; i < lanes_.size(); ++i)
    if (std::vector<HostChunks::Pieces> pieces = host_pieces(lanes_[i]); !pieces.empty())
      lanes_[i].chunks = std::make_unique<HostChunks>(std::move(pieces), lanes_[i].lane.chunk_ends(),
                                                      lanes_[i].lane.size, each[i], ctx.stream);
}

void Optimizer::wait_for_copies(const Stream& stream) const {
  for (const LaneState& m : lanes_)
    if (m.chunks) m.chunks->wait_for_copies(stream);
}

void Optimizer::wait_for_copies(const Stream& stream, const ShardPiece& piece) const {
  for (const LaneState& m : lanes_)
    for (const LaneRange& r : m.lane.ranges)
      if (m.chunks && overlap(r.range, piece))
        m.chunks->wait_for_copies(stream,
                                  r.at + std::min(r.range.numel, piece.offset + piece.numel - r.range.first.offset));
}

void Optimizer::join_copies() {
  for (LaneState& m : lanes_)
    if (m.chunks) m.chunks->join_copies();
}

void Optimizer::begin_step() {
  stepping_ = true;
  const bool paced = config_.offload == StateOffload::weights;
  for (LaneState& m : lanes_)
    if (m.chunks) paced ? m.chunks->prefetch_first() : m.chunks->prefetch();
}

void Optimizer::prefetch_next() {
  for (LaneState& m : lanes_)
    if (m.chunks && stepping_) m.chunks->prefetch_next();
}

void Optimizer::update(const Tensor& step, const ExecContext& ctx) {
  stepping_ = false;
  for (LaneState& m : lanes_) {
    if (!m.chunks) {
      RING_CHECK(host_pieces(m).empty(), "states on the host have no chunks on the device");
      update_elements(m, 0, m.lane.size, m.states, step, ctx);
      continue;
    }
    m.chunks->for_each_chunk([&](std::int64_t first, std::int64_t n, const std::vector<Tensor>& here) {
      update_elements(m, first, n, here, step, ctx);
    });
  }
}

// here: device tensors that hold elements [first, first + n) of each state of the lane, followed by those of the values
// and of the weights if values and weights are kept on the host.
void Optimizer::update_elements(const LaneState& m, std::int64_t first, std::int64_t n, const std::vector<Tensor>& here,
                                const Tensor& step, const ExecContext& ctx) const {
  if (m.lane.rule->is_matrix_rule()) return update_matrices(m, first, n, here, step, ctx);
  for (const LaneRange& range : m.lane.ranges)
    if (const LaneSlice part = range.intersect(first, n); part.piece.numel > 0)
      m.lane.rule->update(arguments(m, range, part, first, here, step), ctx);
}

void Optimizer::update_matrices(const LaneState& m, std::int64_t first, std::int64_t n, const std::vector<Tensor>& here,
                                const Tensor& step, const ExecContext& ctx) const {
  std::vector<MatrixUpdate> all;
  for (const LaneRange& range : m.lane.ranges)
    for (const auto& [part, piece] : range.range.pieces) {
      const LaneSlice matrix{piece, range.at + piece.offset - range.range.first.offset};
      if (matrix.at < first || matrix.at >= first + n) continue;
      all.push_back(
          {arguments(m, range, matrix, first, here, step), piece.param, piece.rows, piece.numel / piece.rows});
    }
  if (!all.empty()) m.lane.rule->update_matrices(all, slices_, ctx);
}

ParameterUpdate Optimizer::arguments(const LaneState& m, const LaneRange& range, const LaneSlice& part,
                                     std::int64_t first, const std::vector<Tensor>& here, const Tensor& step) const {
  const auto of = [&](const Tensor& t) { return t.narrow(0, part.at - first, part.piece.numel); };
  const auto blocks_of = [&](const Tensor& t) {
    return t.narrow(0, (part.at - first) / kMomentBlock, moment_blocks(part.piece.numel));
  };
  ParameterUpdate u;
  u.gradients = shard_.gradients.of(part.piece);
  std::size_t i = 0;
  for (const StateKind& kind : m.lane.rule->states()) {
    u.states.push_back(of(here[i++]));
    u.scales.push_back(kind.fp8 ? blocks_of(here[i++]) : Tensor());
  }
  u.values = offloads_values_ ? of(here[i++]) : shard_.values.of(part.piece);
  if (shard_.separate_master()) u.weights = offloads_weights_ ? of(here[i]) : shard_.weights.of(part.piece);
  u.step = step;
  u.lr_scale = range.lr_scale;
  u.weight_decay = range.weight_decay;
  u.first_element = part.piece.offset;
  return u;
}

std::size_t Optimizer::state_bytes() const {
  std::size_t bytes = 0;
  for (const OptimizerState& s : states_) bytes += s.buffer.flat.bytes() + (s.fp8 ? s.scales.bytes() : 0);
  return bytes;
}

std::size_t Optimizer::device_bytes() const {
  if (config_.offload == StateOffload::none) return state_bytes();
  std::size_t bytes = 0;
  for (const LaneState& m : lanes_) bytes += m.chunks ? m.chunks->device_bytes() : 0;
  return bytes;
}

std::size_t Optimizer::host_bytes() const {
  std::size_t bytes = 0;
  for (const LaneState& m : lanes_) bytes += m.chunks ? m.chunks->host_bytes() : 0;
  return bytes;
}

std::uint64_t state_bytes(const OptimizerConfig& config, const OwnedShard& shard) {
  std::uint64_t bytes = 0;
  for (const Lane& lane : lanes_of(config, shard, 0))
    bytes += static_cast<std::uint64_t>(lane.size / kParamAlign * lane.state_bytes_per_block());
  return bytes;
}

std::uint64_t staging_bytes(const OptimizerConfig& config, const OwnedShard& shard, const ParamTypes& types) {
  const std::vector<Lane> lanes = lanes_of(config, shard, 0);
  const std::vector<HostChunks::Sizes> each = staging_of(config, lanes, types, config.offload_staging_bytes);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < lanes.size(); ++i)
    if (const std::int64_t block = travelling_bytes(config, lanes[i], types))
      bytes += HostChunks::device_bytes(lanes[i].size, block, each[i], lanes[i].chunk_ends());
  return bytes;
}

}  // namespace ring
