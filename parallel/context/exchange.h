#pragma once
// The schedules of context parallelism: how queries meet the keys of other ranks.
//   ring        keys travel straight from their owner to whoever needs them, one distance after the other, while the
//               ones before are computed with; gradients of keys travel home in f32. Memory does not grow with the
//               ranks.
//   gather      every rank gets all keys at once; gradients are summed by a reduce-scatter.
//   all_to_all  every rank gets all rows of some heads (Jacobs et al. 2023, Ulysses). The ranks divide the KV heads. It
//               alone has whole sequences.
// Whoever watches calls gets the keys of whole documents; with a ring or gather they are gathered once more for it.
// Results are merged in f32, in an order that depends on the layout alone, and rounded once.

#include <memory>

#include "autograd/context_exchange.h"
#include "comm/communicator.h"

namespace ring {

enum class ContextSchedule : std::uint8_t { automatic, ring, gather, all_to_all };
// Which keys a ring and gather send where blocks are selected: all that come before a rank's queries, or those alone
// that they selected. For these the host waits in each call until the device has selected. automatic: on CPUs, where
// that is no wait.
enum class ContextKeys : std::uint8_t { automatic, all, referenced };

class ContextParallel : public ContextExchange {
 public:
  virtual std::string_view schedule() const = 0;
  virtual std::int64_t bytes_sent() const { return bytes_sent_; }  // by this rank to others since the start
  Tensor all_rows(const Tensor& t, const ContextShards&, const ExecContext&) override;
  void sum(const Tensor& t, const ExecContext&) override;

 protected:
  explicit ContextParallel(Communicator& comm) : comm_(comm) {}
  // Throws Error if the sequences are cut for other ranks than those of the group.
  void check_shards(const ContextShards&) const;
  // Exchanges messages as Communicator does, counts their bytes, and leaves out empty ones.
  Work exchange(std::vector<Transfer> sends, std::vector<Transfer> receives, const ExecContext&);
  Tensor receive_buffer(const Shape& shape, DType dtype, const ExecContext& ctx) {
    return comm_.receive_buffer(shape, dtype, ctx.stream);
  }

  Communicator& comm_;
  std::int64_t bytes_sent_ = 0;
};

struct RingOptions {
  std::int64_t prefetch = 1;  // steps whose keys are under way before they are needed
  // Ranks that are neighbours, on one node, where others are farther away; it divides the ranks. The keys of another
  // node then come to this one once, during a whole revolution among its ranks, who pass them on. 0: all ranks.
  int per_node = 0;
  // Longer messages of dense and block-sparse attention (gradients of keys, f32) go by groups of heads, one ring after
  // the other: what is held beside operands and results is that of one group.
  std::int64_t message_bytes = std::int64_t{1} << 30;
  ContextKeys keys = ContextKeys::automatic;
};
std::unique_ptr<ContextParallel> make_ring(Communicator&, const RingOptions&);
std::unique_ptr<ContextParallel> make_gather(Communicator&, ContextKeys = ContextKeys::automatic);
std::unique_ptr<ContextParallel> make_all_to_all(Communicator&);
// The fastest of them, measured once for each shape and pattern where the context has a tuning file; else the ring.
std::unique_ptr<ContextParallel> make_measured_context(Communicator&, const RingOptions&);

// automatic: the fastest. The communicator lives as long.
std::unique_ptr<ContextParallel> make_context_parallel(Communicator&, ContextSchedule, const RingOptions&);

// Ranks per node where all nodes have as many and they are neighbours; else all.
int ranks_per_node(const std::vector<int>& nodes);

}  // namespace ring
