#include "parallel/context/batch.h"

#include <algorithm>

#include "core/checked.h"
#include "core/upload.h"
#include "kernels/attention/pairs.h"

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

// Returns the token rows at these positions in each row of a batch that has `rows` rows of `length` tokens.
std::vector<LocalRows> rows_at(const ContextLayout::Chunks& runs, std::int64_t length, std::int64_t rows) {
  std::vector<LocalRows> out;
  std::int64_t first = 0;
  for (std::int64_t row = 0; row < rows; ++row)
    for (const ContextLayout::Chunk& c : runs) {
      const std::int64_t count = c.end - c.begin;
      out.push_back(
          {narrow<std::int32_t>(first), narrow<std::int32_t>(row * length + c.begin), narrow<std::int32_t>(count)});
      first += count;
    }
  return out;
}

std::vector<std::int32_t> taken(const std::vector<std::int32_t>& all, const std::vector<LocalRows>& rows) {
  std::vector<std::int32_t> out;
  if (all.empty()) return out;
  for (const LocalRows& r : rows) out.insert(out.end(), all.begin() + r.global, all.begin() + r.global + r.count);
  return out;
}

// Returns the batch without tokens.
Batch frame_of(const Batch& all) {
  Batch b;
  b.sample_indices = all.sample_indices, b.sources = all.sources;
  b.starts = all.starts, b.lengths = all.lengths, b.documents = all.documents;
  return b;
}

std::int64_t count_targets(const Batch& b) {
  return std::count_if(b.targets.begin(), b.targets.end(), [](std::int32_t t) { return t >= 0; });
}

// Returns the tokens in these rows of the batch.
Batch tokens_at(const std::vector<LocalRows>& rows, const Batch& all) {
  Batch b = frame_of(all);
  b.inputs = taken(all.inputs, rows), b.targets = taken(all.targets, rows);
  b.positions = taken(all.positions, rows), b.answers = taken(all.answers, rows);
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
    : rank_(ranks.all.rank()), layout_(std::move(layout)) {
  if (layout_.kind() != ContextLayoutKind::balanced) held_ = {layout_.chunks(rank_)};
  RING_CHECK(layout_.ranks() == ranks.all.size(), "context batches: a layout of ", layout_.ranks(), " ranks for ",
             ranks.all.size());
  if (!whole()) exchange_ = make_context_parallel(ranks, schedule, ring);
}

ContextBatches::ContextBatches(ContextLayout layout, const ExecContext& ctx, std::size_t host_limit,
                               Communicator* group, std::int64_t align, int in_flight)
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
  for (int i = 0; i < in_flight; ++i)
    chunked_.push_back(std::make_unique<ChunkedContext>(ctx, host_limit, shared ? group : nullptr));
}

std::int64_t ContextBatches::tokens() const {
  if (!in_chunks()) return layout_.tokens_of_rank(rank_);
  std::int64_t sum = 0;
  for (const ContextLayout::Chunks& runs : held_) sum += tokens_in(runs);
  return sum;
}

std::int64_t ContextBatches::tokens_of_chunk(int chunk) const {
  return in_chunks() ? tokens_in(held(chunk)) : tokens();
}

Batch ContextBatches::part(const Batch& all) const {
  if (whole() || (in_chunks() && slices_.empty())) return all;
  if (!in_chunks()) return tokens_at(held_rows(*shards_of(all, 0)), all);
  ContextLayout::Chunks runs;
  for (const ContextLayout::Chunks& some : held_) runs.insert(runs.end(), some.begin(), some.end());
  if (!all.unread) return tokens_at(rows_at(runs, layout_.length(), 1), all);
  Batch b = all;  // only the last positions of an unread row can be without a target
  b.valid_targets = 0;
  for (const ContextLayout::Chunk& c : runs)
    b.valid_targets += std::max<std::int64_t>(0, std::min(c.end, all.valid_targets) - c.begin);
  return b;
}

Batch ContextBatches::chunk_of(const Batch& part, int chunk) const {
  if (!in_chunks() || whole()) return part;
  if (part.unread) return read_tokens(held(chunk).front(), part);
  std::int64_t first = 0;
  for (int c = 0; c < chunk; ++c) first += tokens_of_chunk(c);
  return tokens_at(rows_at({{first, first + tokens_of_chunk(chunk)}}, tokens(), 1), part);
}

std::shared_ptr<const ContextShards> ContextBatches::shards_of(const Batch& b, int chunk) const {
  const auto rows = static_cast<std::int64_t>(b.sample_indices.size());
  const auto of_parts = [&](int part) {
    return std::make_shared<ContextShards>(layout_.shards(part, rows, documents_of(b, layout_.length())));
  };
  if (slices_.empty()) return of_parts(in_chunks() ? chunk : rank_);
  auto shared = std::make_shared<ContextShards>(slices_[static_cast<std::size_t>(chunk)].shards(rank_, 1, {}));
  shared->chunks = of_parts(chunk);
  return shared;
}

const std::vector<LocalRows>& ContextBatches::held_rows(const ContextShards& shards) const {
  return shards.rows_by_rank[static_cast<std::size_t>(rank_)];
}

Sequences ContextBatches::sequences(const Batch& b, const Tensor& positions, const ExecContext& ctx, int chunk) const {
  const auto rows = static_cast<std::int64_t>(b.sample_indices.size());
  const bool packed = !b.positions.empty();
  if (whole())
    return packed ? Sequences::packed(b.starts, b.lengths, layout_.length(), positions)
                  : Sequences::uniform(rows, layout_.length(), ctx);
  const std::shared_ptr<const ContextShards> shards = shards_of(b, chunk);
  if (packed) return Sequences::sharded(shards, positions);
  if (!ctx.stream.impl().computes())
    return Sequences::sharded(shards, ctx.empty({rows * tokens_of_chunk(chunk)}, DType::i32));
  // Without documents, positions count from the start of each row.
  std::vector<std::int32_t> places =
      global_rows(in_chunks() ? rows_at(held(chunk), layout_.length(), rows) : held_rows(*shards));
  for (std::int32_t& place : places) place %= narrow<std::int32_t>(layout_.length());
  return Sequences::sharded(shards, upload(places, ctx.stream));
}

std::int64_t ContextBatches::bytes_sent() const {
  std::int64_t sum = exchange_ ? exchange_->bytes_sent() : 0;
  for (const auto& chunked : chunked_)
    if (const ContextTransfers* transfers = chunked->transfers()) sum += transfers->bytes_sent();
  return sum;
}

void ContextBatches::reserve(std::int64_t rows, const ExecContext& ctx) {
  if (whole() || in_chunks() || layout_.kind() == ContextLayoutKind::balanced || rows_.count(rows)) return;
  rows_[rows] = from_host(global_rows(rows_at(held_.front(), layout_.length(), rows)), ctx.stream, Lifetime::run);
}

// A chunked micro-batch is one sequence, so this process's rows of a chunk are adjacent: first_row locates them. The
// rows of a balanced layout differ between micro-batches.
void ContextBatches::set_up_run(Run& run, std::int64_t rows, const Sequences& sequences, int chunk, std::size_t micro) {
  if (whole()) return;
  if (in_chunks()) {
    RING_CHECK(rows == 1, "a chunked micro-batch has ", rows, " rows, expected one");
    run.first_row += held(chunk).front().begin;
    run.layout.cp = chunked(micro);
    return;
  }
  run.layout.cp = exchange_.get();
  if (layout_.kind() == ContextLayoutKind::balanced) {
    if (!run.ctx.stream.impl().computes())
      run.layout.rows = run.ctx.empty({rows * tokens()}, DType::i32);
    else
      run.layout.rows = upload(global_rows(held_rows(*sequences.shards)), run.ctx.stream);
    return;
  }
  reserve(rows, run.ctx);
  run.layout.rows = rows_.at(rows);
}

double ContextBatches::attention_pairs(const Sequences& sequences, const Pattern& pattern,
                                       std::int64_t kv_heads) const {
  if (sequences.shards) return exchange_->pairs(sequences.shards, pattern, kv_heads);
  const std::vector<Span> documents = sequences.spans();
  return static_cast<double>(kv_heads) * kept_pairs(pattern, documents, documents, kv_heads);
}

}  // namespace ring
