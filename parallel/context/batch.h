#pragma once
// The parts of batches that a process computes at a time: its part of every sequence under context parallelism, or,
// with train.sequence_chunk, one chunk after another, or its part of each chunk. Prepares model runs over a part.

#include <map>
#include <memory>
#include <vector>

#include "autograd/ops.h"
#include "data/loader.h"
#include "parallel/context/chunked_context.h"
#include "parallel/context/exchange.h"
#include "parallel/context/layout.h"

namespace ring {

class ContextBatches {
 public:
  // layout: how a row is sharded among the ranks; each rank has at least one token. With one rank, sequences are whole.
  ContextBatches(const ContextRanks& ranks, ContextLayout layout, ContextSchedule, const RingOptions&);
  // The parts of the layout are chunks, which are computed one after another. host_limit: as in ChunkStore. group: the
  // ranks that share each chunk, which must outlive this object; null means that this process computes whole chunks.
  // align: the ranks' slices of a chunk begin at multiples of `align`, and none may be empty. in_flight: maximum number
  // of micro-batches that store keys at the same time.
  ContextBatches(ContextLayout layout, const ExecContext&, std::size_t host_limit, Communicator* group = nullptr,
                 std::int64_t align = 1, int in_flight = 1);

  bool whole() const { return layout_.ranks() == 1; }
  // Returns the number of chunks into which this process divides its sequences; 1 if it has no chunks. The functions
  // below that take a chunk work on this chunk.
  int chunks() const { return in_chunks() ? layout_.ranks() : 1; }
  std::int64_t tokens() const;                    // tokens of each row that this process holds, in all chunks
  std::int64_t tokens_of_chunk(int chunk) const;  // tokens of each row that this process holds in a chunk
  const ContextLayout& layout() const { return layout_; }
  // Returns the object that stores the keys of a micro-batch; null without chunks.
  ChunkedContext* chunked(std::size_t micro = 0) const {
    return in_chunks() ? chunked_[micro % chunked_.size()].get() : nullptr;
  }
  // Returns how many bytes of keys, values and their gradients this rank has sent to other ranks since the start.
  std::int64_t bytes_sent() const;

  // Returns a batch with only the tokens that this process holds; its `starts` and `lengths` still describe the whole
  // batch.
  Batch part(const Batch& whole) const;
  // Returns the tokens of a chunk of a batch returned by part().
  Batch chunk_of(const Batch& part, int chunk) const;
  // Returns the boundaries of the documents in a batch that part() or chunk_of() returned. positions: on the device for
  // packed documents, else undefined.
  Sequences sequences(const Batch& part, const Tensor& positions, const ExecContext&, int chunk = 0) const;
  // Sets up `run` for `rows` rows of micro-batch `micro`, or for a chunk of these rows. sequences: the sequences in
  // the rows.
  void set_up_run(Run&, std::int64_t rows, const Sequences& sequences, int chunk = 0, std::size_t micro = 0);
  void reserve(std::int64_t rows, const ExecContext&);  // allocates in advance all that set_up_run() needs
  // Returns the number of (query, key) pairs that attention computes on this process for a micro-batch without chunks,
  // summed over the process's kv_heads KV heads.
  double attention_pairs(const Sequences&, const Pattern&, std::int64_t kv_heads) const;

 private:
  bool in_chunks() const { return !chunked_.empty(); }
  const ContextLayout::Chunks& held(int chunk) const { return held_[static_cast<std::size_t>(chunk)]; }
  std::shared_ptr<const ContextShards> shards_of(const Batch&, int chunk) const;
  const std::vector<LocalRows>& held_rows(const ContextShards&) const;

  int rank_ = 0;
  ContextLayout layout_;
  std::vector<ContextLayout> slices_;  // how the ranks share each chunk; empty if they do not
  // By chunk: the positions in a row that this process holds; empty if these positions depend on documents.
  std::vector<ContextLayout::Chunks> held_;
  std::unique_ptr<ContextParallel> exchange_;
  std::vector<std::unique_ptr<ChunkedContext>> chunked_;  // micro-batch m uses element m % size; empty without chunks
  std::map<std::int64_t, Tensor> rows_;                   // cache of RunLayout::rows, keyed by the number of rows
};

}  // namespace ring
