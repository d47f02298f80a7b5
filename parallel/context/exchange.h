#pragma once
// The schedules of context parallelism: how queries meet the keys of other ranks.
//   ring        owners send keys directly to each rank that needs them, one ring distance after another, while ranks
//               compute with earlier keys; gradients of keys are sent back. Memory does not grow with the number of
//               ranks.
//   gather      every rank gets all keys at once; gradients are summed by a reduce-scatter, or, if messages round them,
//               by their owners.
//   all_to_all  every rank gets all rows of some heads (Jacobs et al. 2023, Ulysses). The number of ranks must divide
//               the number of KV heads. Only with this schedule a rank has whole sequences.
//   hybrid      the ranks of a node exchange heads as with all_to_all, so that each rank has all rows of the node for
//               some heads; ranks with the same index on their nodes then run a ring with these rows (Fang and Zhao
//               2024, USP). The number of ranks on a node must divide the number of KV heads. Not for patterns that
//               select blocks.
// A watch (AttentionWatch) needs the keys of whole documents, so ring and gather gather the keys once more for it.
// Results are merged in f32, in an order that depends only on the layout, and rounded once.

#include <memory>

#include "autograd/context_exchange.h"
#include "comm/communicator.h"

namespace ring {

enum class ContextSchedule : std::uint8_t { automatic, ring, gather, all_to_all, hybrid };
// Keys that ring and gather send if blocks are selected: `all` keys that come before a rank's queries, or only the
// `referenced` ones, which its queries selected. With `referenced` the host waits in each call until the device has
// selected. automatic: `referenced` on CPUs, where there is nothing to wait for, else `all`.
enum class ContextKeys : std::uint8_t { automatic, all, referenced };
// Types of the messages that ring and gather send, and that the ring of hybrid sends. A rank's own keys, values and
// gradients are never rounded for messages, and gradients are summed in f32.
//   exact  keys and values in their own type, their gradients in f32
//   bf16   gradients in bf16
//   fp8    keys and values in e4m3 with a scale for each row of a head (kernels/row_encoding.h), gradients in bf16. The
//          forward and the backward round the same, so gradients are those of the function that was computed.
enum class ContextMessages : std::uint8_t { exact, bf16, fp8 };
constexpr std::string_view to_string(ContextMessages m) {
  return m == ContextMessages::exact ? "exact" : m == ContextMessages::bf16 ? "bf16" : "fp8";
}

// Transfers between the ranks of a group. Counts the bytes that this rank sends.
class ContextTransfers {
 public:
  explicit ContextTransfers(Communicator& comm) : comm_(comm) {}
  virtual ~ContextTransfers() = default;
  // Returns this rank's KV heads if the ranks divide the heads among themselves.
  KvHeads own_heads(std::int64_t kv_heads) const {
    const std::int64_t count = kv_heads / comm_.size();
    return {comm_.rank() * count, count};
  }
  // Returns the bytes that this rank has sent to other ranks since the start.
  virtual std::int64_t bytes_sent() const { return bytes_sent_; }
  // Throws Error if the shards are for a different number of ranks than the group has.
  void check_shards(const ContextShards&) const;
  // Starts an exchange, as Communicator::exchange does. Skips empty messages.
  Work exchange(std::vector<Transfer> sends, std::vector<Transfer> receives, const ExecContext&);
  // Gathers `own`, which may be this rank's part of `all`, of all ranks. The stream waits for the result.
  void all_gather(const Tensor& all, const Tensor& own, const ExecContext&);
  // Replaces t, f32, by its sum over the ranks. The stream waits for the result.
  void all_reduce(const Tensor& t, const ExecContext&);
  Tensor receive_buffer(const Shape& shape, DType dtype, const ExecContext& ctx) {
    return comm_.receive_buffer(shape, dtype, ctx.stream);
  }

 protected:
  Communicator& comm_;
  std::int64_t bytes_sent_ = 0;
};

// Returns the chain that passes states between the ranks (state_chain.h).
std::unique_ptr<StateChain> make_state_chain(ContextTransfers&);

class ContextParallel : public ContextExchange, public ContextTransfers {
 public:
  virtual std::string_view schedule() const = 0;
  // Returns the number of (query, key) pairs that this rank computes, summed over its kv_heads KV heads. Pools count as
  // keys. For patterns that select blocks, counts as many blocks as the pattern keeps.
  virtual double pairs(const std::shared_ptr<const ContextShards>&, const Pattern&, std::int64_t kv_heads);
  Tensor all_rows(const Tensor& t, const ContextShards&, const ExecContext&) override;
  void sum(const Tensor& t, const ExecContext& ctx) override { all_reduce(t, ctx); }
  StateChain& states() override { return *states_; }

 protected:
  using ContextTransfers::ContextTransfers;

 private:
  const std::unique_ptr<StateChain> states_ = make_state_chain(*this);
};

struct RingOptions {
  std::int64_t prefetch = 1;  // number of steps whose keys are prefetched
  // Number of adjacent ranks per node, for a two-level ring and for hybrid; must divide the number of ranks. In a
  // two-level ring, each node receives the keys of each other node once, and its ranks pass them around in one
  // revolution of the node's ring. 0 means one ring over all ranks.
  int per_node = 0;
  // Upper bound on the bytes of a message (gradients of keys, counted in f32) for dense and block-sparse attention. If
  // messages would be larger, heads are processed in groups, one ring after another, which need the memory of a single
  // group beside operands and results.
  std::int64_t message_bytes = std::int64_t{1} << 30;
  ContextKeys keys = ContextKeys::automatic;
  ContextMessages messages = ContextMessages::exact;
};

// The ranks that share sequences. The communicators must outlive every object that is made with them.
struct ContextRanks {
  ContextRanks(Communicator& every) : all(every) {}
  ContextRanks(Communicator& every, Communicator& on_node, Communicator& between)
      : all(every), node(&on_node), between_nodes(&between) {}

  Communicator& all;
  // Only for hybrid, else null: the adjacent ranks of this rank's node, and the ranks with the same index on each node,
  // in the order of the nodes.
  Communicator *node = nullptr, *between_nodes = nullptr;
};

std::unique_ptr<ContextParallel> make_ring(Communicator&, const RingOptions&);
std::unique_ptr<ContextParallel> make_gather(Communicator&, ContextKeys = ContextKeys::automatic,
                                             ContextMessages = ContextMessages::exact);
std::unique_ptr<ContextParallel> make_all_to_all(Communicator&);
// Requires ranks.node and ranks.between_nodes. Ignores RingOptions::per_node: the size of ranks.node counts instead.
std::unique_ptr<ContextParallel> make_hybrid(const ContextRanks&, const RingOptions&);
// Uses the fastest of ring, gather and all_to_all, measured once for each shape and pattern if the context has a tuning
// file; else uses the ring. all_to_all takes part only if messages are exact.
std::unique_ptr<ContextParallel> make_measured_context(Communicator&, const RingOptions&);

// automatic: see make_measured_context(). all_to_all requires exact messages.
std::unique_ptr<ContextParallel> make_context_parallel(const ContextRanks&, ContextSchedule, const RingOptions&);

// Returns the number of ranks per node if it is the same on all nodes and the ranks of each node are adjacent; else
// returns the total number of ranks. nodes: the node of each rank.
int ranks_per_node(const std::vector<int>& nodes);

}  // namespace ring
