#include "parallel/context/exchange.h"

namespace ring {

void ContextParallel::check_shards(const ContextShards& s) const {
  RING_CHECK(s.ranks() == comm_.size() && s.rank == comm_.rank(), "context exchange: the sequences are cut for rank ",
             s.rank, " of ", s.ranks(), ", this is rank ", comm_.rank(), " of ", comm_.size());
}

Work ContextParallel::exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                               const Context& ctx) {
  for (const Transfer& t : sends)
    if (t.peer != comm_.rank()) bytes_sent_ += static_cast<std::int64_t>(t.tensor.bytes());
  return comm_.exchange(sends, receives, ctx.stream.record());
}

std::unique_ptr<ContextParallel> make_context_parallel(Communicator& comm, const ParallelConfig& c) {
  switch (c.cp_schedule) {
    case ContextSchedule::automatic:
    case ContextSchedule::ring: return make_ring(comm, c.cp_prefetch);
    case ContextSchedule::gather: return make_gather(comm);
    case ContextSchedule::all_to_all: return make_all_to_all(comm);
  }
  fail("context exchange: no such schedule");
}

}  // namespace ring
