#include <limits>

#include "autograd/ops.h"

namespace ring {

Sequences Sequences::uniform(std::int64_t batch, std::int64_t length, const ExecContext& ctx,
                             std::int64_t first_position) {
  constexpr std::int64_t max = std::numeric_limits<std::int32_t>::max();
  RING_CHECK(batch >= 0 && length >= 0 && first_position >= 0, "sequences: batch ", batch, ", length ", length,
             ", first position ", first_position, ": none may be negative");
  RING_CHECK(length == 0 || (batch <= max / length && first_position <= max - length), "sequences: batch ", batch,
             " x length ", length, " from position ", first_position, " does not fit into 32 bits");
  Sequences s;
  std::vector<std::int32_t> positions;
  positions.reserve(static_cast<std::size_t>(batch * length));
  for (std::int64_t b = 0; b <= batch; ++b) s.offsets.push_back(static_cast<std::int32_t>(b * length));
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t t = 0; t < length; ++t) positions.push_back(static_cast<std::int32_t>(first_position + t));
  s.positions = ctx.empty({batch * length}, DType::i32);
  if (!positions.empty()) ctx.stream.impl().copy(s.positions.raw(), positions.data(), s.positions.bytes());
  return s;
}

Sequences Sequences::packed(std::vector<std::int32_t> starts, std::vector<std::int32_t> lengths, std::int64_t row,
                            const Tensor& positions) {
  constexpr const char* op = "packed sequences";
  RING_CHECK(positions.defined() && positions.dtype() == DType::i32 && positions.shape().size() == 1, op,
             ": positions are ", describe(positions), ", expected i32[tokens]");
  const std::int64_t tokens = positions.numel();
  RING_CHECK(row > 0 && tokens % row == 0 && tokens <= std::numeric_limits<std::int32_t>::max(), op, ": ", tokens,
             " tokens in rows of ", row);
  RING_CHECK(starts.size() == lengths.size(), op, ": ", starts.size(), " starts, ", lengths.size(), " lengths");
  Sequences s;
  s.offsets = std::move(starts);
  s.offsets.push_back(static_cast<std::int32_t>(tokens));
  s.lengths = std::move(lengths);
  for (std::size_t b = 0; b < s.lengths.size(); ++b) {
    const std::int64_t first = s.offsets[b], end = first + s.lengths[b];
    RING_CHECK(first >= 0 && s.lengths[b] > 0 && end <= s.offsets[b + 1] && (end - 1) / row == first / row, op,
               ": document ", b, " holds tokens ", first, " to ", end, ", the next one begins at ", s.offsets[b + 1],
               ", rows have ", row);
  }
  for (std::int64_t at = 0; at < tokens; at += row) s.rows.push_back(static_cast<std::int32_t>(at));
  s.positions = positions;
  return s;
}

Sequences Sequences::sharded(std::shared_ptr<const ContextShards> shards, const Tensor& positions) {
  const std::int64_t tokens = shards->tokens(shards->rank);
  RING_CHECK(positions.defined() && positions.dtype() == DType::i32 && positions.numel() == tokens,
             "sharded sequences: positions are ", describe(positions), ", expected i32[", tokens, "]");
  Sequences s;
  s.offsets = {0, static_cast<std::int32_t>(tokens)};
  s.positions = positions;
  s.shards = std::move(shards);
  return s;
}

Sequences Sequences::without_positions() const {
  Sequences s = *this;
  s.positions = {};
  s.inv_freq = {};
  return s;
}

SelectionPart selection_part(const Run& run, const Sequences& seqs, const Pattern& pattern, std::int64_t kv_heads) {
  if (!seqs.shards) return {{0, kv_heads}, pattern, seqs.spans_on(run.ctx.stream)};
  RING_CHECK(run.layout.cp, "attention: the sequences are sharded among ", seqs.shards->ranks(),
             " ranks, but the run has no exchange (RunLayout::cp)");
  SelectionPart part = run.layout.cp->selection_part(seqs.shards, pattern, kv_heads);
  RING_CHECK(part.heads.count > 0,
             "attention: the heads for which a rank selects and measures blocks are unknown, because the exchange "
             "chooses its schedule during attention");
  return part;
}

std::int64_t ContextShards::tokens(int of_rank) const {
  std::int64_t sum = 0;
  for (const LocalRows& h : rows_by_rank[static_cast<std::size_t>(of_rank)]) sum += h.count;
  return sum;
}

std::int64_t ContextShards::tokens() const {
  std::int64_t sum = 0;
  for (int r = 0; r < ranks(); ++r) sum += tokens(r);
  return sum;
}

std::vector<Span> Sequences::spans_on(const Stream& stream) const {
  RING_CHECK(
      !current_spans || !stream.impl().recording(),
      "a recording would keep the offsets of this step's documents. Queue attention in each step (queue_host_node)");
  return spans();
}

std::vector<Span> Sequences::spans() const {
  RING_CHECK(!shards, "sequences that are sharded among ranks have no spans of their own: see ContextShards");
  if (current_spans) return *current_spans;
  std::vector<Span> spans = spans_of(offsets, rows);
  for (std::size_t b = 0; b < lengths.size(); ++b) spans[b].count = lengths[b];
  return spans;
}

}  // namespace ring
