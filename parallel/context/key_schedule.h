#pragma once
// Base class of ring and gather, the schedules that move keys to the queries.

#include <memory>

#include "parallel/context/exchange.h"
#include "parallel/context/key_references.h"
#include "parallel/context/rows.h"

namespace ring {

// The rows that each rank holds, and the referenced keys of other ranks.
struct KeyShards {
  std::shared_ptr<const ContextShards> shards;
  KeyReferences referenced;
};

// Attention over the (query, key) pairs of a pattern, for this rank's rows. If the pattern selects blocks,
// Attention::selection must be set.
class KeySchedule : public ContextTransfers {
 public:
  KeySchedule(Communicator& comm, ContextMessages messages) : ContextTransfers(comm), messages_(messages) {}
  virtual std::string_view name() const = 0;
  virtual void attend(const Attention&, const KeyShards&, const ExecContext&) = 0;
  virtual void attend_backward(const AttentionBackward&, const KeyShards&, const ExecContext&) = 0;

 protected:
  // Return the types of messages (rows.h) with keys and values of this type, and with their gradients.
  DType key_message(DType keys) const { return messages_ == ContextMessages::fp8 ? DType::u8 : keys; }
  DType gradient_message() const { return messages_ == ContextMessages::exact ? DType::f32 : DType::bf16; }
  // Returns a buffer to receive a message (rows.h) with the requested keys and values, or with their gradients. like: a
  // tensor [N,H,D] with their heads and head dimension.
  Tensor receive_message(const KeyRequest& need, const Tensor& like, DType type, const ExecContext& ctx) {
    return message_in(need, like, type, [&](std::int64_t size) { return receive_buffer({size}, type, ctx); });
  }

 private:
  ContextMessages messages_;
};
std::unique_ptr<KeySchedule> make_ring_schedule(Communicator&, const RingOptions&);
std::unique_ptr<KeySchedule> make_gather_schedule(Communicator&, ContextMessages);

}  // namespace ring
