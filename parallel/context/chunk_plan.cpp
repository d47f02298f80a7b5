#include "parallel/context/chunk_plan.h"

#include <algorithm>
#include <utility>

#include "autograd/selected/block_means.h"
#include "core/check.h"
#include "parallel/context/accumulators.h"

namespace ring {
namespace {

// Returns the index of the request's rows among the messages, to which it adds them if they are not there yet.
std::size_t message_of(const KeyRequest& need, std::vector<KeyRequest>& messages) {
  const auto same = [&](const KeyRequest& m) { return m.rows == need.rows && m.copies == need.copies; };
  const auto at = std::ranges::find_if(messages, same);
  if (at != messages.end()) return static_cast<std::size_t>(at - messages.begin());
  KeyRequest rows = need;
  rows.calls.clear();
  messages.push_back(std::move(rows));
  return messages.size() - 1;
}

// Returns the first chunk that contains tokens of a document of this chunk.
int first_chunk_with_keys(const ContextShards& shards, int chunk) {
  const auto first_row = [&](int c) { return shards.rows_by_rank[static_cast<std::size_t>(c)].front().global; };
  const auto ends_before = [&](const Span& d) { return d.first + d.count <= first_row(chunk); };
  const auto document = std::ranges::partition_point(shards.documents, ends_before);
  if (document == shards.documents.end()) return chunk;
  int first = chunk;
  while (first > 0 && first_row(first) > document->first) --first;
  return first;
}

// Renumbers AttentionCall::block_rows: row 0 of a chunk's selection is the chunk's first block.
void use_rows_of_chunk(ChunkPlan& plan, ContextShards shards, int chunk, const Pattern& pattern) {
  if (!pattern.selects()) return;
  shards.rank = chunk;
  const std::int32_t first = chunk_blocks(shards, pattern).first;
  const auto shift = [&](std::vector<AttentionCall>& calls) {
    for (AttentionCall& call : calls)
      for (std::int32_t& row : call.block_rows) row -= first;
  };
  shift(plan.own);
  for (EarlierKeys& e : plan.earlier) shift(e.need.calls);
}

}  // namespace

std::int64_t ChunkPlan::calls() const {
  std::int64_t n = calls_of(own);
  for (const EarlierKeys& e : earlier) n += calls_of(e.need.calls);
  return n;
}

std::vector<ChunkPlan> make_chunk_plans(const ContextShards& shards, const Pattern& pattern, std::int64_t kv_heads,
                                        SpanPositions positions, bool local) {
  RING_CHECK(pattern.causal, "a sequence in chunks needs causal attention, because later chunks are not known yet");
  std::vector<ChunkPlan> plans(static_cast<std::size_t>(shards.ranks()));
  for (int chunk = 0; chunk < shards.ranks(); ++chunk) {
    ChunkPlan& plan = plans[static_cast<std::size_t>(chunk)];
    plan.own = needed_keys(shards, chunk, chunk, pattern, kv_heads, positions).calls;
    for (int before = first_chunk_with_keys(shards, chunk); before < chunk && !local; ++before) {
      if (!may_need_keys(shards, chunk, before, pattern)) continue;
      KeyRequest need = needed_keys(shards, chunk, before, pattern, kv_heads, positions);
      if (need.none()) continue;
      const std::size_t message = message_of(need, plans[static_cast<std::size_t>(before)].messages);
      plan.earlier.push_back({before, message, std::move(need)});
    }
    use_rows_of_chunk(plan, shards, chunk, pattern);
  }
  return plans;
}

}  // namespace ring
