#include "optim/outer_optimizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "core/clock.h"
#include "core/cpu/thread_pool.h"
#include "core/host_tensor.h"
#include "kernels/elementwise.h"
#include "kernels/gradient_codes.h"
#include "parallel/fsdp_units.h"

namespace ring {
namespace {

GradientCoding coding_of_bits(std::int64_t bits) {
  return {bits == 8   ? GradientCode::int8
          : bits == 4 ? GradientCode::int4
          : bits == 2 ? GradientCode::int2
                      : GradientCode::f32};
}

// Returns a CPU context: the given one if it is on a CPU, otherwise a new one with `threads` threads.
ExecContext host_context(const ExecContext& ctx, int threads) {
  return {ctx.stream.device().backend == Backend::cpu ? ctx.stream : Stream::create({Backend::cpu, 0}, threads)};
}

constexpr std::int64_t kPartElements = std::int64_t{1} << 14;  // minimum elements per thread

std::size_t unit_of(const FsdpUnits& units, const Param* p) {
  for (std::size_t u = 0; u < units.units.size(); ++u)
    if (std::ranges::any_of(units.units[u].params, [&](const Param* q) { return q == p; })) return u;
  fail("no part of the model uses ", p->parts[0].name);
}

}  // namespace

OuterOptimizer::OuterOptimizer(const ParallelConfig& config, std::int64_t last_step, Model& model, DataParallel& data,
                               Groups groups, int threads, const ExecContext& ctx)
    : config_(config),
      coding_(coding_of_bits(config.outer_bits)),
      last_step_(last_step),
      data_(data),
      groups_(groups),
      host_(host_context(ctx, threads)),
      pieces_(pieces_of(model, data.shard(), groups.data, data.sharded())),
      fragments_(make_fragments(config, model, pieces_, data.shard().values)) {
  const OwnedShard& shard = data.shard();
  RING_CHECK(shard.values.flat.dtype() == DType::f32 && shard.values.flat.device() == ctx.stream.device(),
             "outer optimizer: values are ", describe(shard.values.flat), ", expected f32 on the device");
  allocate(ctx);
  start(ctx);
}

OuterOptimizer::Pieces OuterOptimizer::pieces_of(Model& model, const OwnedShard& shard, const Communicator& data,
                                                 bool sharded) {
  Pieces p;
  if (data.size() > 1 && !sharded) p.all = plan_shards(model.parameters(), data.size());
  p.own = p.all.empty() ? shard.pieces : pieces_of_rank(p.all, data.rank());
  std::erase_if(p.own, [](const ShardPiece& piece) { return piece.param->is_frozen(); });
  return p;
}

// Divides the model's parts into contiguous fragments, which are the same in every layout of an island. values: may be
// undefined to predict sizes only; the fragments then lack the pieces of other ranks.
std::vector<OuterOptimizer::Fragment> OuterOptimizer::make_fragments(const ParallelConfig& config, Model& model,
                                                                     const Pieces& pieces, const FlatBuffer& values) {
  const FsdpUnits units = make_fsdp_units(model, {});
  const auto count = static_cast<std::size_t>(config.outer_fragments);
  if (count > units.units.size())
    fail("parallel.outer_fragments: ", count, " is more than the ", units.units.size(),
         " parts of this model (embedding, blocks, final norm, head). Set it to at most ", units.units.size());
  std::vector<Fragment> fragments(count);
  const auto fragment_of = [&](const ShardPiece& p) -> Fragment& {
    return fragments[unit_of(units, p.param) * count / units.units.size()];
  };
  for (const ShardPiece& whole : pieces.own)
    for (const auto& [part, piece] : logical_pieces(whole)) {
      if (part->frozen) continue;
      Fragment& f = fragment_of(piece);
      f.ranges.push_back({piece, f.numel, f.bytes});
      f.numel += piece.numel;
      f.bytes += ring::message_bytes(coding_of_bits(config.outer_bits), piece.numel);
    }
  for (const ShardPiece& whole : pieces.all)
    for (const auto& [part, piece] : logical_pieces(whole))
      if (!part->frozen && values.flat.defined()) fragment_of(piece).all.push_back({values.of(piece), piece.owner});
  return fragments;
}

OuterOptimizer::Sizes OuterOptimizer::sizes_of(const Pieces& pieces, const std::vector<Fragment>& fragments) {
  Sizes s;
  for (const ShardPiece& p : pieces.own) s.state = std::max(s.state, p.shard_offset + p.numel);
  for (const Fragment& f : fragments) s.values = std::max(s.values, f.numel), s.message = std::max(s.message, f.bytes);
  return s;
}

OuterOptimizer::HostMemory OuterOptimizer::host_memory(const ParallelConfig& c, Model& model, const OwnedShard& shard,
                                                       const Communicator& data, bool sharded) {
  const Pieces pieces = pieces_of(model, shard, data, sharded);
  const Sizes s = sizes_of(pieces, make_fragments(c, model, pieces, {}));
  const std::int64_t states = c.outer_bits < 32 ? 3 : 2;
  return {size_of(DType::f32) * static_cast<std::uint64_t>(states * s.state),
          size_of(DType::f32) * static_cast<std::uint64_t>(2 * s.values) +
              static_cast<std::uint64_t>(c.islands * s.message)};
}

void OuterOptimizer::allocate(const ExecContext& ctx) {
  const Sizes s = sizes_of(pieces_, fragments_);
  const auto floats = [&](std::int64_t n) { return host_tensor({n}, DType::f32, ctx.stream); };
  theta_ = data_.shard().as_shard(floats(s.state));
  momentum_ = data_.shard().as_shard(floats(s.state));
  if (quantizes()) residual_ = data_.shard().as_shard(floats(s.state));
  sent_values_ = floats(s.values);
  values_ = floats(s.values);
  messages_ = host_tensor({s.message * groups_.islands.size()}, DType::u8, ctx.stream);
}

std::int64_t OuterOptimizer::message_bytes() const {
  std::int64_t bytes = 0;
  for (const Fragment& f : fragments_) bytes += f.bytes;
  return bytes;
}

std::uint64_t OuterOptimizer::host_bytes() const {
  std::uint64_t bytes = 0;
  for (const Tensor* t : {&theta_.flat, &momentum_.flat, &residual_.flat, &sent_values_, &values_, &messages_})
    if (t->defined()) bytes += t->bytes();
  return bytes;
}

bool OuterOptimizer::due(std::size_t fragment, std::int64_t step) const {
  if (step <= 0) return false;
  const std::int64_t every = config_.local_steps, count = std::ssize(fragments_);
  const std::int64_t offset = (static_cast<std::int64_t>(fragment) + 1) * every / count;
  return step == last_step_ || (step - offset) % every == 0;
}

bool OuterOptimizer::sends_after(std::int64_t step) const {
  for (std::size_t f = 0; f < fragments_.size(); ++f)
    if (due(f, step)) return true;
  return false;
}

void OuterOptimizer::start(const ExecContext& ctx) {
  for (const Fragment& f : fragments_) {
    read_values(f, values_, ctx);
    for (const Range& r : f.ranges)
      std::memcpy(of(theta_, r).raw(), part(values_, r).raw(), static_cast<std::size_t>(r.piece.numel) * sizeof(float));
  }
  for (const FlatBuffer* b : {&momentum_, &residual_})
    if (b->flat.defined()) std::memset(b->flat.raw(), 0, b->flat.bytes());
}

void OuterOptimizer::send(std::int64_t step, const ExecContext& ctx) {
  if (config_.outer_delay == 0 || step == last_step_ || step == combined_step_ || in_flight_) return;
  for (std::size_t f = 0; f < fragments_.size(); ++f)
    if (due(f, step)) send_fragment(f, ctx);
}

bool OuterOptimizer::receive(std::int64_t step, const ExecContext& ctx) {
  const bool under_way = in_flight_.has_value();
  if (under_way) combine(ctx);
  if ((config_.outer_delay > 0 && step != last_step_) || !sends_after(step)) return under_way;
  for (std::size_t f = 0; f < fragments_.size(); ++f) {
    if (!due(f, step)) continue;
    send_fragment(f, ctx);
    combine(ctx);
  }
  combined_step_ = step;
  return true;
}

void OuterOptimizer::send_fragment(std::size_t index, const ExecContext& ctx) {
  RING_CHECK(!in_flight_, "two fragments would be under way at the same time");
  const double began = seconds_now();
  const Fragment& f = fragments_[index];
  read_values(f, sent_values_, ctx);
  encode(f);
  in_flight_ = Sent{index, {}};
  if (f.bytes > 0)
    in_flight_->work = groups_.islands.all_gather(messages_.narrow(0, 0, f.bytes * groups_.islands.size()),
                                                  messages_.narrow(0, f.bytes * groups_.islands.rank(), f.bytes));
  wait_seconds_ += seconds_now() - began;
}

// Encodes this island's message for fragment f, and updates the residuals.
void OuterOptimizer::encode(const Fragment& f) const {
  for (const Range& r : f.ranges) {
    const Tensor difference = part(values_, r), residual = quantizes() ? of(residual_, r) : Tensor{};
    axpby_kernel({of(theta_, r), part(sent_values_, r), difference, 1, -1}, host_);
    encode_gradient_kernel({difference, residual, residual, message(f, r, groups_.islands.rank()), coding_}, host_);
  }
}

void OuterOptimizer::combine(const ExecContext& ctx) {
  const double began = seconds_now();
  const Fragment& f = fragments_[in_flight_->fragment];
  in_flight_->work.synchronize();  // allowed host wait: transport
  read_values(f, values_, ctx);
  bool finite = true;
  for (const Range& r : f.ranges) finite &= update(f, r);
  if (!finite)
    fail(
        "the weight differences that islands sent are not finite, so their weights cannot be combined. The weights of ",
        "an island are damaged: resume from a checkpoint");
  write_values(f, values_, ctx);
  in_flight_.reset();
  wait_seconds_ += seconds_now() - began;
}

// Updates theta and the momentum, and overwrites the range in `values_` with the new weights. Returns false if the
// average of the differences is not finite.
bool OuterOptimizer::update(const Fragment& f, const Range& r) const {
  const Tensor now = part(values_, r), sum = part(sent_values_, r);
  axpby_kernel({now, sum, now, 1, -1}, host_);  // change of this island's weights since it sent its message
  for (int island = 0; island < groups_.islands.size(); ++island)
    decode_gradient_kernel({message(f, r, island), sum, coding_, island > 0}, host_);
  float *const theta = of(theta_, r).data<float>(), *const m = of(momentum_, r).data<float>();
  float *const value = now.data<float>(), *const sums = sum.data<float>();
  const auto lr = static_cast<float>(config_.outer_lr), mu = static_cast<float>(config_.outer_momentum);
  const auto islands = static_cast<float>(groups_.islands.size());
  std::atomic<bool> finite{true};
  host_.stream.pool().parallel_for(r.piece.numel, kPartElements, [&](std::int64_t begin, std::int64_t end, int) {
    bool all = true;
    for (std::int64_t i = begin; i < end; ++i) {
      const float average = sums[i] / islands;
      all &= std::isfinite(average);
      m[i] = mu * m[i] + average;
      theta[i] -= lr * (average + mu * m[i]);
      value[i] += theta[i];
    }
    if (!all) finite = false;
  });
  return finite;
}

// Copies this rank's values of the fragment to host memory, and waits for the copies.
void OuterOptimizer::read_values(const Fragment& f, const Tensor& to, const ExecContext& ctx) const {
  for (const Range& r : f.ranges) {
    const Tensor value = data_.shard().values.of(r.piece);
    ctx.stream.impl().copy(to.narrow(0, r.at, r.piece.numel).raw(), value.raw(), value.bytes());
  }
  ctx.stream.synchronize();  // allowed host wait: transport
}

// Writes the values of the fragment on all ranks of the island that hold them. Collective over the island's data group.
void OuterOptimizer::write_values(const Fragment& f, const Tensor& from, const ExecContext& ctx) const {
  data_.prepare_to_write_weights();
  for (const Range& r : f.ranges) {
    const Tensor value = data_.shard().values.of(r.piece);
    ctx.stream.impl().copy(value.raw(), from.narrow(0, r.at, r.piece.numel).raw(), value.bytes());
  }
  if (!f.all.empty()) groups_.data.broadcast_pieces(f.all, ctx.stream.record()).wait(ctx.stream);
  ctx.stream.synchronize();  // allowed host wait: transport
}

void OuterOptimizer::swap_values(const ExecContext& ctx) {
  RING_CHECK(!in_flight_, "weights are swapped while messages are under way");
  for (const Fragment& f : fragments_) {
    read_values(f, values_, ctx);
    for (const Range& r : f.ranges) {
      float* const theta = of(theta_, r).data<float>();
      std::swap_ranges(theta, theta + r.piece.numel, values_.data<float>() + r.at);
    }
    write_values(f, values_, ctx);
  }
}

void OuterOptimizer::take_theta(const ExecContext& ctx) {
  for (const Fragment& f : fragments_) {
    for (const Range& r : f.ranges) {
      const float* const theta = of(theta_, r).data<float>();
      std::copy_n(theta, r.piece.numel, values_.data<float>() + r.at);
    }
    write_values(f, values_, ctx);
  }
}

}  // namespace ring
