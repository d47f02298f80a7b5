#pragma once
// Context parallelism of batches: extracts this rank's part of every sequence, and prepares model runs over the part.

#include <map>
#include <memory>

#include "autograd/ops.h"
#include "data/loader.h"
#include "parallel/context/exchange.h"
#include "parallel/context/layout.h"

namespace ring {

class ContextBatches {
 public:
  // layout: how a row is sharded among the ranks of the group; each rank has at least one token. With one rank
  // sequences stay whole. The group must outlive this object.
  ContextBatches(Communicator& group, ContextLayout layout, ContextSchedule, const RingOptions&);

  bool whole() const { return layout_.ranks() == 1; }
  std::int64_t tokens() const { return layout_.tokens_of_rank(rank_); }  // tokens of each row that this rank holds
  const ContextLayout& layout() const { return layout_; }
  const ContextParallel* exchange() const { return exchange_.get(); }  // null if whole()

  // Returns a batch with only this rank's tokens; its `starts` and `lengths` still describe the whole batch.
  Batch part(const Batch& whole) const;
  // Returns the documents of a batch returned by part(). positions: on the device for packed documents, else undefined.
  Sequences sequences(const Batch& part, const Tensor& positions, const ExecContext&) const;
  // Sets up `run` for a part of a micro-batch of `rows` rows.
  void set_up_run(Run&, std::int64_t rows);
  void reserve(std::int64_t rows, const ExecContext&);  // allocates in advance all that set_up_run() needs

 private:
  int rank_;
  ContextLayout layout_;
  std::unique_ptr<ContextParallel> exchange_;
  std::map<std::int64_t, Tensor> rows_;  // RunLayout::rows for each number of rows
};

}  // namespace ring
