#pragma once
// The parts of batches that a process computes at a time: its part of every sequence under context parallelism, or one
// chunk of every sequence after another (train.sequence_chunk). Prepares model runs over a part.

#include <map>
#include <memory>

#include "autograd/ops.h"
#include "data/loader.h"
#include "parallel/context/chunked_context.h"
#include "parallel/context/exchange.h"
#include "parallel/context/layout.h"

namespace ring {

class ContextBatches {
 public:
  // layout: how a row is sharded among the ranks of the group; each rank has at least one token. With one rank
  // sequences stay whole. The group must outlive this object.
  ContextBatches(Communicator& group, ContextLayout layout, ContextSchedule, const RingOptions&);
  // This process computes all parts of the layout itself, one after another, as chunks. host_limit: as in ChunkStore.
  ContextBatches(ContextLayout layout, const ExecContext&, std::size_t host_limit);

  bool whole() const { return layout_.ranks() == 1; }
  // Returns the number of chunks into which this process divides its sequences; 1 if it has no chunks. The functions
  // below that take a chunk work on this chunk.
  int chunks() const { return chunked_ ? layout_.ranks() : 1; }
  std::int64_t tokens() const;                  // tokens of each row that this process holds, in all chunks
  std::int64_t tokens_before(int chunk) const;  // tokens of a row in earlier chunks
  const ContextLayout& layout() const { return layout_; }
  const ContextParallel* exchange() const { return exchange_.get(); }  // null without context parallelism
  ChunkedContext* chunked() const { return chunked_.get(); }           // null without chunks

  // Returns a batch with only the tokens that this process holds; its `starts` and `lengths` still describe the whole
  // batch.
  Batch part(const Batch& whole) const { return chunked_ ? whole : tokens_of(whole, rank_); }
  // Returns the tokens of a chunk of a batch returned by part().
  Batch chunk_of(const Batch& part, int chunk) const { return chunked_ ? tokens_of(part, chunk) : part; }
  // Returns the boundaries of the documents in a batch that part() or chunk_of() returned. positions: on the device for
  // packed documents, else undefined.
  Sequences sequences(const Batch& part, const Tensor& positions, const ExecContext&, int chunk = 0) const;
  // Sets up `run` for a part of a micro-batch of `rows` rows.
  void set_up_run(Run&, std::int64_t rows, int chunk = 0);
  void reserve(std::int64_t rows, const ExecContext&);  // allocates in advance all that set_up_run() needs

 private:
  Batch tokens_of(const Batch& whole, int part) const;
  Tensor positions_of_part(int part, std::int64_t rows, const ExecContext&) const;
  int part_of(int chunk) const { return chunked_ ? chunk : rank_; }  // index in the layout

  int rank_ = 0;
  ContextLayout layout_;
  std::unique_ptr<ContextParallel> exchange_;
  std::unique_ptr<ChunkedContext> chunked_;
  std::map<std::int64_t, Tensor> rows_;  // RunLayout::rows for each number of rows
};

}  // namespace ring
