#include "parallel/context/batch.h"

#include <algorithm>

#include "core/upload.h"

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

ContextBatches::ContextBatches(ContextLayout layout, const ExecContext& ctx, std::size_t host_limit)
    : layout_(std::move(layout)), chunked_(std::make_unique<ChunkedContext>(ctx, host_limit)) {}

std::int64_t ContextBatches::tokens() const { return chunked_ ? layout_.length() : layout_.tokens_of_rank(rank_); }

std::int64_t ContextBatches::tokens_before(int chunk) const {
  std::int64_t sum = 0;
  for (int c = 0; c < chunk; ++c) sum += layout_.tokens_of_rank(c);
  return sum;
}

Batch ContextBatches::tokens_of(const Batch& all, int part) const {
  if (whole()) return all;
  const auto rows = static_cast<std::int64_t>(all.sample_indices.size());
  const auto take = [&](const std::vector<std::int32_t>& v) { return taken(v, layout_, part, rows); };
  Batch b;
  if (all.unread) {
    const ContextLayout::Chunk held = layout_.chunks(part).front();
    b.inputs.resize(static_cast<std::size_t>(held.end - held.begin)), b.targets.resize(b.inputs.size());
    all.unread->read(held.begin, b.inputs, b.targets);
  } else {
    b.inputs = take(all.inputs), b.targets = take(all.targets), b.positions = take(all.positions);
  }
  b.sample_indices = all.sample_indices, b.sources = all.sources;
  b.starts = all.starts, b.lengths = all.lengths;
  b.valid_targets = std::count_if(b.targets.begin(), b.targets.end(), [](std::int32_t t) { return t >= 0; });
  return b;
}

Sequences ContextBatches::sequences(const Batch& b, const Tensor& positions, const ExecContext& ctx, int chunk) const {
  const auto rows = static_cast<std::int64_t>(b.sample_indices.size());
  const bool packed = !b.positions.empty();
  if (whole())
    return packed ? Sequences::packed(b.starts, b.lengths, layout_.length(), positions)
                  : Sequences::uniform(rows, layout_.length(), ctx);
  const int index = part_of(chunk);
  auto shards = std::make_shared<const ContextShards>(layout_.shards(index, rows, documents_of(b, layout_.length())));
  if (packed) return Sequences::sharded(std::move(shards), positions);
  return Sequences::sharded(std::move(shards), positions_of_part(index, rows, ctx));
}

// Returns the position in its row of each token of a part.
Tensor ContextBatches::positions_of_part(int part, std::int64_t rows, const ExecContext& ctx) const {
  if (!ctx.stream.impl().computes()) return ctx.empty({rows * layout_.tokens_of_rank(part)}, DType::i32);
  std::vector<std::int32_t> places;
  places.reserve(static_cast<std::size_t>(rows * layout_.tokens_of_rank(part)));
  for_held(layout_, part, rows, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
      places.push_back(static_cast<std::int32_t>((first + i) % layout_.length()));
  });
  return upload(places, ctx.stream);
}

void ContextBatches::reserve(std::int64_t rows, const ExecContext& ctx) {
  if (whole() || chunked_ || rows_.count(rows)) return;
  std::vector<std::int32_t> held;
  for_held(layout_, rank_, rows, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) held.push_back(static_cast<std::int32_t>(first + i));
  });
  rows_[rows] = from_host(held, ctx.stream, Lifetime::run);
}

// The token rows of a chunk are adjacent, since a micro-batch that is split into chunks has a single sequence row.
void ContextBatches::set_up_run(Run& run, std::int64_t rows, int chunk) {
  if (whole()) return;
  if (chunked_) {
    RING_CHECK(rows == 1, "a micro-batch in chunks has ", rows, " rows, expected one");
    run.first_row += tokens_before(chunk);
    run.layout.cp = chunked_.get();
    return;
  }
  reserve(rows, run.ctx);
  run.layout.rows = rows_.at(rows);
  run.layout.cp = exchange_.get();
}

}  // namespace ring
