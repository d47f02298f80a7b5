#include "parallel/context/batch.h"

#include <algorithm>

namespace ring {
namespace {

std::vector<Span> documents_of(const Batch& b, std::int64_t length) {
  std::vector<Span> documents;
  const auto row = static_cast<std::int32_t>(length);
  if (b.positions.empty()) {
    const auto rows = static_cast<std::int32_t>(b.sample_indices.size());
    for (std::int32_t i = 0; i < rows; ++i) documents.push_back({i * row, row, 0, 0});
  }
  for (std::size_t d = 0; d < b.starts.size(); ++d)
    documents.push_back({b.starts[d], b.lengths[d], b.starts[d] % row, b.starts[d] % row});
  return documents;
}

// Calls fn(first token in the whole batch, count) for each run of consecutive tokens that a rank holds, in the rank's
// order.
template <class Fn>
void for_held(const ContextLayout& layout, int rank, std::int64_t rows, const Fn& fn) {
  for (std::int64_t row = 0; row < rows; ++row)
    for (const ContextLayout::Chunk& c : layout.chunks(rank)) fn(row * layout.length() + c.begin, c.end - c.begin);
}

std::vector<std::int32_t> taken(const std::vector<std::int32_t>& all, const ContextLayout& layout, int rank,
                                std::int64_t rows) {
  std::vector<std::int32_t> out;
  if (all.empty()) return out;
  for_held(layout, rank, rows, [&](std::int64_t first, std::int64_t count) {
    out.insert(out.end(), all.begin() + first, all.begin() + first + count);
  });
  return out;
}

}  // namespace

ContextBatches::ContextBatches(Communicator& group, ContextLayout layout, ContextSchedule schedule,
                               const RingOptions& ring)
    : rank_(group.rank()), layout_(std::move(layout)) {
  RING_CHECK(layout_.ranks() == group.size(), "context batches: a layout of ", layout_.ranks(), " ranks for ",
             group.size());
  if (!whole()) exchange_ = make_context_parallel(group, schedule, ring);
}

Batch ContextBatches::part(const Batch& all) const {
  if (whole()) return all;
  const auto rows = static_cast<std::int64_t>(all.sample_indices.size());
  const auto take = [&](const std::vector<std::int32_t>& v) { return taken(v, layout_, rank_, rows); };
  Batch b;
  b.inputs = take(all.inputs), b.targets = take(all.targets), b.positions = take(all.positions);
  b.sample_indices = all.sample_indices, b.sources = all.sources;
  b.starts = all.starts, b.lengths = all.lengths;
  b.valid_targets = std::count_if(b.targets.begin(), b.targets.end(), [](std::int32_t t) { return t >= 0; });
  return b;
}

Sequences ContextBatches::sequences(const Batch& b, const Tensor& positions, const ExecContext& ctx) const {
  const auto rows = static_cast<std::int64_t>(b.sample_indices.size());
  const bool packed = !b.positions.empty();
  if (whole())
    return packed ? Sequences::packed(b.starts, b.lengths, layout_.length(), positions)
                  : Sequences::uniform(rows, layout_.length(), ctx);
  auto shards = std::make_shared<const ContextShards>(layout_.shards(rank_, rows, documents_of(b, layout_.length())));
  if (packed) return Sequences::sharded(std::move(shards), positions);
  std::vector<std::int32_t> places;
  for_held(layout_, rank_, rows, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
      places.push_back(static_cast<std::int32_t>((first + i) % layout_.length()));
  });
  return Sequences::sharded(std::move(shards), from_host(places, ctx.stream));
}

void ContextBatches::reserve(std::int64_t rows, const ExecContext& ctx) {
  if (whole() || rows_.count(rows)) return;
  std::vector<std::int32_t> held;
  for_held(layout_, rank_, rows, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) held.push_back(static_cast<std::int32_t>(first + i));
  });
  rows_[rows] = from_host(held, ctx.stream, Lifetime::run);
}

void ContextBatches::set_up_run(Run& run, std::int64_t rows) {
  if (whole()) return;
  reserve(rows, run.ctx);
  run.layout.rows = rows_.at(rows);
  run.layout.cp = exchange_.get();
}

}  // namespace ring
