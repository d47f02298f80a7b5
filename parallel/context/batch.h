#pragma once
// A run's share of every sequence: cuts batches, and prepares runs of the model over the part.

#include <map>
#include <memory>

#include "autograd/ops.h"
#include "data/loader.h"
#include "parallel/context/exchange.h"
#include "parallel/context/layout.h"

namespace ring {

class ContextBatches {
 public:
  // layout: of a row among the ranks of the group, each of which has tokens of it. With one rank everything is whole.
  // The group lives as long.
  ContextBatches(Communicator& group, ContextLayout layout, ContextSchedule, const RingOptions&);

  bool whole() const { return layout_.ranks() == 1; }
  std::int64_t tokens() const { return layout_.tokens(rank_); }  // that this rank holds of a row
  const ContextLayout& layout() const { return layout_; }
  const ContextParallel* exchange() const { return exchange_.get(); }  // null: whole

  // This rank's tokens of a whole batch. starts and lengths stay those of the whole.
  Batch part(const Batch& whole) const;
  // What belongs together in such a part. positions: of packed documents, on the device; else undefined.
  Sequences sequences(const Batch& part, const Tensor& positions, const ExecContext&) const;
  // The run is over a part of this many rows.
  void prepare(Run&, std::int64_t rows);
  void reserve(std::int64_t rows, const ExecContext&);  // what prepare() would allocate for them

 private:
  int rank_;
  ContextLayout layout_;
  std::unique_ptr<ContextParallel> exchange_;
  std::map<std::int64_t, Tensor> rows_;  // see Run::rows, by the number of rows
};

}  // namespace ring
