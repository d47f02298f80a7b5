#include "parallel/data_parallel.h"

#include <chrono>
#include <functional>
#include <utility>

#include "comm/self.h"
#include "parallel/compression.h"

namespace ring {
namespace {

std::vector<SlotRange> slot_ranges(const Parameters& params) {
  std::vector<SlotRange> out;
  for (const Param* p : params.layout())
    if (!p->is_frozen()) out.push_back({p->var.slot, p->offset, p->shape.numel()});
  return out;
}

Tensor in_flat(const Param& p, const Tensor& flat) { return flat.narrow(0, p.offset, p.shape.numel()).view(p.shape); }

double seconds_of(const std::function<void()>& wait) {
  const auto before = std::chrono::steady_clock::now();
  wait();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
}

}  // namespace

DataParallel::DataParallel(Model& model, Communicator& comm, const CompressionRanks& compression, Communicator& slices,
                           const ParallelConfig& config, std::int64_t bucket_bytes, const ParamTypes& types,
                           std::uint64_t seed, const ExecContext& ctx)
    : ctx_(ctx),
      model_(model),
      comm_(comm),
      slices_(slices),
      zero_(comm.size() > 1 ? static_cast<int>(config.zero) : 0) {
  if (sharded()) {
    allocate_sharded(types, seed);
  } else {
    model.allocate(ctx, seed, types);
    shard_ = own_everything(model.parameters());
    shard_.weights.on_host = types.on_host == HostParams::weights;
    if (make_encoded(types) || shard_.weights.on_host) units_ = make_fsdp_units(model, shard_.pieces);
    if (shard_.weights.on_host) make_gather();
  }
  make_compressor(config, compression);
  make_reducer(config, bucket_bytes, types);
  if (source_ || encoded_) subscription_ = {ctx_.scopes, *this};
}

// Returns false if no weights are encoded.
bool DataParallel::make_encoded(const ParamTypes& types) {
  const Parameters& params = model_.parameters();
  encoded_stale_ = params.encoded_begin() < params.size();
  if (encoded_stale_)
    encoded_ = std::make_unique<EncodedWeights>(EncodedWeights::Ranks{comm_, slices_, pieces_, zero_ == 3}, shard_,
                                                params, types.weights, ctx_);
  return encoded_stale_;
}

void DataParallel::allocate_sharded(const ParamTypes& types, std::uint64_t seed) {
  Parameters& params = model_.parameters();
  params.lay_out();
  model_.allocate_constants(ctx_);
  pieces_ = plan_shards(params, comm_.size());
  units_ = make_fsdp_units(model_, pieces_);
  shard_.slice = params.slice();
  shard_.pieces = pieces_of_rank(pieces_, comm_.rank());
  shard_.size = shard_size(pieces_, comm_.rank());
  const bool on_host = types.on_host == HostParams::weights, all_weights = zero_ < 3 && !on_host;
  const std::int64_t plain = encoded_begin(pieces_, comm_.rank());
  shard_.weights = {make_weights(all_weights ? params.encoded_begin() : plain, types, ctx_), all_weights, on_host};
  // Without separate master values, the values are the weights themselves.
  shard_.values = shard_.weights;
  if (types.separate_master()) shard_.values = shard_.as_shard(make_master(plain, types, ctx_));
  shard_.values.exact = make_exact_values(shard_.size - plain, types, ctx_);
  shard_.values.exact_begin = plain;
  make_encoded(types);
  if (all_weights) {
    for (Param* p : params.layout())
      if (!p->encoded) p->var.value = in_flat(*p, shard_.weights.flat);
    source_ = std::make_unique<WeightBroadcast>(comm_, units_, shard_.weights.flat);
  } else {
    make_gather();
  }
  shard_.initialise(seed, ctx_);
  stale_ = true;
}

void DataParallel::make_gather() {
  if (!sharded()) alone_ = make_self_communicator();
  auto gather = std::make_unique<WeightGather>(sharded() ? comm_ : *alone_, slices_, units_, ctx_, shard_.weights,
                                               encoded_.get());
  gather_ = gather.get();
  source_ = std::move(gather);
  stale_ = true;
}

void DataParallel::set_host_updates(WeightGather::WaitForUpdate wait, std::function<void()> next_part) {
  RING_CHECK(gather_ && shard_.weights.on_host, "the weights are not on the host");
  gather_->set_wait_for_update(std::move(wait));
  next_part_ = std::move(next_part);
}

void DataParallel::make_compressor(const ParallelConfig& config, const CompressionRanks& ranks) {
  const std::optional<GradientCoding> coding = coding_of(config);
  const std::int64_t elements = model_.parameters().trained_size();
  if (coding && comm_.size() > 1)
    compressor_ = std::make_unique<GradientCompressor>(ranks, *coding, elements, zero_ == 0, ctx_);
}

// Divides a bucket into pieces with owners. With zero: 0, where every rank needs all sums, there are no pieces unless a
// compressor needs owners: then each rank owns an equal share.
void DataParallel::make_pieces(Bucket& bucket) const {
  const std::int64_t end = bucket.begin + bucket.grad.numel();
  for (const ShardPiece& p : pieces_)
    if (p.offset >= bucket.begin && p.offset < end)
      bucket.pieces.push_back({p.offset - bucket.begin, p.numel, p.owner, p.offset,
                               GradientCompressor::compresses(*p.param, shard_.slice)});
  if (sharded() || !compressor_) return;
  std::vector<GradientCompressor::Range> matrices;
  for (const Param* p : model_.parameters().layout())
    if (!p->is_frozen() && GradientCompressor::compresses(*p, shard_.slice) && p->offset >= bucket.begin &&
        p->offset < end)
      matrices.push_back({p->offset - bucket.begin, p->shape.numel()});
  bucket.pieces = compressor_->split(bucket.grad.numel(), bucket.begin, matrices);
}

void DataParallel::make_reducer(const ParallelConfig& config, std::int64_t bucket_bytes, const ParamTypes& types) {
  Parameters& params = model_.parameters();
  const GradientTravel travel{config.reduce, compressor_.get()};
  if (zero_ >= 2) {
    const Shape trained{trained_size(pieces_, comm_.rank())};
    shard_.gradients = shard_.as_shard(ctx_.zeros(trained, types.gradients, Lifetime::run));
    unit_reducer_ = std::make_unique<FsdpReducer>(comm_, units_, ctx_, types.gradients, travel, shard_.gradients);
    return;
  }
  if (zero_ == 1) {
    shard_.gradients = {ctx_.zeros({params.trained_size()}, types.gradients, Lifetime::run), true};
    for (Param* p : params.layout()) {
      if (p->is_frozen()) continue;
      p->var.slot->grad = in_flat(*p, shard_.gradients.flat);
      p->var.slot->bound = true;  // backward writes into the flat buffer instead of allocating a gradient
    }
  }
  std::vector<Bucket> buckets = make_buckets(shard_.gradients.flat, slot_ranges(params), bucket_bytes);
  for (Bucket& b : buckets) make_pieces(b);
  reducer_ = std::make_unique<Reducer>(comm_, ctx_.stream, std::move(buckets), travel);
}

void DataParallel::start_step() {
  wait_seconds_ = 0;
  if (unit_reducer_)
    unit_reducer_->start_step();
  else
    model_.parameters().start_step();
}

void DataParallel::finish_gradients() {
  if (shard_.weights.on_host) source_->wait_for_reads(ctx_);  // the update overwrites the memory that copies read
  wait_seconds_ += seconds_of([&] {
    unit_reducer_ ? unit_reducer_->finish_step(ctx_) : reducer_->finish();
    sum_replicated(shard_, slices_, ctx_);
  });
}

void DataParallel::on_weights_updated() {
  if (source_) source_->on_owners_updated(ctx_);
  stale_ = false;
}

void DataParallel::prepare_to_write_weights() {
  if (source_) source_->wait_for_reads(ctx_);
}

// Not collective: the new weights are sent in the next forward, which all ranks run.
void DataParallel::on_master_weights_changed() {
  shard_.refresh_weights(ctx_);
  stale_ = true;
  encoded_stale_ = encoded_ != nullptr;
}

void DataParallel::enter(const ScopeId& scope, ScopePass pass) {
  const std::optional<std::size_t> part = units_.find_part(scope);
  if (!part) return;
  if (std::exchange(encoded_stale_, false)) encoded_->encode(ctx_);
  if (!source_) return;
  if (stale_) on_weights_updated();
  wait_seconds_ += seconds_of([&] { source_->need(*part, pass, ctx_); });
  if (next_part_ && pass == ScopePass::backward) next_part_();
  // Gradients are written in backward, except for the loss head: it is the last part, and its forward writes them.
  const bool writes = pass == ScopePass::backward || (pass == ScopePass::forward && *part + 1 == units_.parts.size());
  if (!unit_reducer_ || !writes) return;
  wait_seconds_ += seconds_of([&] {
    for (const std::size_t unit : units_.units_of_part[*part]) unit_reducer_->begin_unit(unit, ctx_);
  });
}

// A unit's gradients are complete after the backward of the first part that uses the unit.
void DataParallel::after_backward(const ScopeId& scope) {
  const std::optional<std::size_t> part = units_.find_part(scope);
  if (!unit_reducer_ || !part) return;
  for (const std::size_t unit : units_.units_of_part[*part])
    if (units_.units[unit].first_part == *part) unit_reducer_->end_unit(unit, ctx_);
}

std::size_t DataParallel::weight_bytes() const {
  const bool master_here = shard_.separate_master() && shard_.values.flat.device() == ctx_.stream.device();
  return (shard_.weights.on_host ? 0 : shard_.weights.flat.bytes()) + (master_here ? shard_.values.flat.bytes() : 0) +
         (encoded_ ? encoded_->bytes() : 0) + weight_buffer_bytes();
}

std::size_t DataParallel::host_weight_bytes() const {
  const Tensor& exact = shard_.values.exact;
  const std::int64_t trained = sharded() ? trained_size(pieces_, comm_.rank()) : model_.parameters().trained_size();
  const std::int64_t frozen = shard_.weights.on_host ? shard_.weights.flat.numel() - trained : 0;
  return (exact.defined() ? exact.bytes() : 0) +
         static_cast<std::size_t>(frozen) * size_of(shard_.weights.flat.dtype());
}

std::size_t DataParallel::uploaded_bytes(const ScopeId& scope, ScopePass pass) const {
  const std::optional<std::size_t> part = units_.find_part(scope);
  if (!shard_.weights.on_host || !part) return 0;
  std::int64_t elements = 0;
  for (const std::size_t unit : units_.units_of_part[*part])
    for (const FsdpUnitPiece& p : units_.units[unit].pieces)
      if ((!sharded() || p.piece.owner == comm_.rank()) &&
          !(pass == ScopePass::backward && units_.units[unit].only_tables))
        elements += p.piece.numel;
  return static_cast<std::size_t>(elements) * size_of(shard_.weights.flat.dtype());
}

std::size_t DataParallel::gradient_bytes() const { return shard_.gradients.flat.bytes() + gradient_buffer_bytes(); }

}  // namespace ring
