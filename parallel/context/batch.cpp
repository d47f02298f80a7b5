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

std::int64_t tokens_in(const ContextLayout::Chunks& runs) {
  std::int64_t sum = 0;
  for (const ContextLayout::Chunk& c : runs) sum += c.end - c.begin;
  return sum;
}

// Calls fn(first token in a batch of rows of `length` tokens, count) for each run of consecutive tokens in these
// positions of each row.
template <class Fn>
void for_tokens(const ContextLayout::Chunks& runs, std::int64_t length, std::int64_t rows, const Fn& fn) {
  for (std::int64_t row = 0; row < rows; ++row)
    for (const ContextLayout::Chunk& c : runs) fn(row * length + c.begin, c.end - c.begin);
}

std::vector<std::int32_t> taken(const std::vector<std::int32_t>& all, const ContextLayout::Chunks& runs,
                                std::int64_t length, std::int64_t rows) {
  std::vector<std::int32_t> out;
  if (all.empty()) return out;
  for_tokens(runs, length, rows, [&](std::int64_t first, std::int64_t count) {
    out.insert(out.end(), all.begin() + first, all.begin() + first + count);
  });
  return out;
}

// Returns the batch without tokens.
Batch frame_of(const Batch& all) {
  Batch b;
  b.sample_indices = all.sample_indices, b.sources = all.sources;
  b.starts = all.starts, b.lengths = all.lengths;
  return b;
}

std::int64_t count_targets(const Batch& b) {
  return std::count_if(b.targets.begin(), b.targets.end(), [](std::int32_t t) { return t >= 0; });
}

// Returns the tokens at these positions of each of the batch's rows, which have `length` tokens.
Batch tokens_at(const ContextLayout::Chunks& runs, const Batch& all, std::int64_t length) {
  const auto rows = static_cast<std::int64_t>(all.sample_indices.size());
  Batch b = frame_of(all);
  b.inputs = taken(all.inputs, runs, length, rows), b.targets = taken(all.targets, runs, length, rows);
  b.positions = taken(all.positions, runs, length, rows);
  b.valid_targets = count_targets(b);
  return b;
}

// Reads the tokens at these positions of a row that was left unread.
Batch read_tokens(const ContextLayout::Chunk& run, const Batch& all) {
  Batch b = frame_of(all);
  b.inputs.resize(static_cast<std::size_t>(run.end - run.begin)), b.targets.resize(b.inputs.size());
  all.unread->read(run.begin, b.inputs, b.targets);
  b.valid_targets = count_targets(b);
  return b;
}

}  // namespace

ContextBatches::ContextBatches(const ContextRanks& ranks, ContextLayout layout, ContextSchedule schedule,
                               const RingOptions& ring)
    : rank_(ranks.all.rank()), layout_(std::move(layout)), held_{layout_.chunks(rank_)} {
  RING_CHECK(layout_.ranks() == ranks.all.size(), "context batches: a layout of ", layout_.ranks(), " ranks for ",
             ranks.all.size());
  if (!whole()) exchange_ = make_context_parallel(ranks, schedule, ring);
}

ContextBatches::ContextBatches(ContextLayout layout, const ExecContext& ctx, std::size_t host_limit,
                               Communicator* group, std::int64_t align)
    : rank_(group ? group->rank() : 0), layout_(std::move(layout)) {
  const bool shared = group && group->size() > 1;
  if (shared) slices_ = slices_of_parts(layout_, group->size(), align);
  for (int chunk = 0; chunk < layout_.ranks(); ++chunk) {
    held_.push_back(layout_.chunks(chunk));
    if (!shared) continue;
    const std::int64_t first = held_.back().front().begin;
    held_.back() = slices_[static_cast<std::size_t>(chunk)].chunks(rank_);
    RING_CHECK(held_.back().size() == 1, "context batches: rank ", rank_, " of ", group->size(),
               " has no token of chunk ", chunk);
    for (ContextLayout::Chunk& c : held_.back()) c.begin += first, c.end += first;
  }
  chunked_ = std::make_unique<ChunkedContext>(ctx, host_limit, shared ? group : nullptr);
}

std::int64_t ContextBatches::tokens() const {
  std::int64_t sum = 0;
  for (const ContextLayout::Chunks& runs : held_) sum += tokens_in(runs);
  return sum;
}

std::int64_t ContextBatches::tokens_of_chunk(int chunk) const { return tokens_in(held(chunk)); }

Batch ContextBatches::part(const Batch& all) const {
  if (whole() || (chunked_ && slices_.empty())) return all;
  ContextLayout::Chunks runs;
  for (const ContextLayout::Chunks& some : held_) runs.insert(runs.end(), some.begin(), some.end());
  if (!all.unread) return tokens_at(runs, all, layout_.length());
  Batch b = all;  // only the last positions of an unread row can be without a target
  b.valid_targets = 0;
  for (const ContextLayout::Chunk& c : runs)
    b.valid_targets += std::max<std::int64_t>(0, std::min(c.end, all.valid_targets) - c.begin);
  return b;
}

Batch ContextBatches::chunk_of(const Batch& part, int chunk) const {
  if (!chunked_ || whole()) return part;
  if (part.unread) return read_tokens(held(chunk).front(), part);
  std::int64_t first = 0;
  for (int c = 0; c < chunk; ++c) first += tokens_of_chunk(c);
  return tokens_at({{first, first + tokens_of_chunk(chunk)}}, part, tokens());
}

std::shared_ptr<const ContextShards> ContextBatches::shards_of(const Batch& b, int chunk) const {
  const auto rows = static_cast<std::int64_t>(b.sample_indices.size());
  const auto of_parts = [&](int part) {
    return std::make_shared<ContextShards>(layout_.shards(part, rows, documents_of(b, layout_.length())));
  };
  if (slices_.empty()) return of_parts(chunked_ ? chunk : rank_);
  auto shared = std::make_shared<ContextShards>(slices_[static_cast<std::size_t>(chunk)].shards(rank_, 1, {}));
  shared->chunks = of_parts(chunk);
  return shared;
}

Sequences ContextBatches::sequences(const Batch& b, const Tensor& positions, const ExecContext& ctx, int chunk) const {
  const auto rows = static_cast<std::int64_t>(b.sample_indices.size());
  const bool packed = !b.positions.empty();
  if (whole())
    return packed ? Sequences::packed(b.starts, b.lengths, layout_.length(), positions)
                  : Sequences::uniform(rows, layout_.length(), ctx);
  return Sequences::sharded(shards_of(b, chunk), packed ? positions : positions_of_chunk(chunk, rows, ctx));
}

// Returns the position in its row of each token that this process holds in a chunk.
Tensor ContextBatches::positions_of_chunk(int chunk, std::int64_t rows, const ExecContext& ctx) const {
  if (!ctx.stream.impl().computes()) return ctx.empty({rows * tokens_of_chunk(chunk)}, DType::i32);
  std::vector<std::int32_t> places;
  places.reserve(static_cast<std::size_t>(rows * tokens_of_chunk(chunk)));
  for_tokens(held(chunk), layout_.length(), rows, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
      places.push_back(static_cast<std::int32_t>((first + i) % layout_.length()));
  });
  return upload(places, ctx.stream);
}

void ContextBatches::reserve(std::int64_t rows, const ExecContext& ctx) {
  if (whole() || chunked_ || rows_.count(rows)) return;
  std::vector<std::int32_t> held;
  for_tokens(held_.front(), layout_.length(), rows, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) held.push_back(static_cast<std::int32_t>(first + i));
  });
  rows_[rows] = from_host(held, ctx.stream, Lifetime::run);
}

// A micro-batch in chunks is one sequence, so this process's rows of a chunk are adjacent: first_row locates them.
void ContextBatches::set_up_run(Run& run, std::int64_t rows, int chunk) {
  if (whole()) return;
  if (chunked_) {
    RING_CHECK(rows == 1, "a micro-batch in chunks has ", rows, " rows, expected one");
    run.first_row += held(chunk).front().begin;
    run.layout.cp = chunked_.get();
    return;
  }
  reserve(rows, run.ctx);
  run.layout.rows = rows_.at(rows);
  run.layout.cp = exchange_.get();
}

}  // namespace ring
