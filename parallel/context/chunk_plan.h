#pragma once
// Plans the exchange of keys and values between the chunks of a sequence that one process computes one after another
// (train.sequence_chunk). The chunks take the place of the ranks in ContextShards.

#include <cstddef>
#include <vector>

#include "parallel/context/plan.h"

namespace ring {

// The keys of an earlier chunk that a chunk needs.
struct EarlierKeys {
  int chunk = 0;
  std::size_t message = 0;  // index in ChunkPlan::messages of that chunk
  KeyRequest need;
};

// If blocks are selected, AttentionCall::block_rows are rows of a selection for the blocks of this chunk alone
// (SelectionPart::chunk); they may be negative.
struct ChunkPlan {
  std::vector<AttentionCall> own;    // calls with the chunk's own keys
  std::vector<EarlierKeys> earlier;  // by chunk
  // The sets of this chunk's rows that later chunks need; their `calls` are empty. Later chunks that need the same rows
  // share a set.
  std::vector<KeyRequest> messages;

  std::int64_t calls() const;  // number of calls of a kernel
};

// Returns the plan of each chunk. local: true if the pattern is known to stay within chunks. Throws Error if queries
// see later keys.
std::vector<ChunkPlan> make_chunk_plans(const ContextShards&, const Pattern&, std::int64_t kv_heads, SpanPositions,
                                        bool local = false);

}  // namespace ring
