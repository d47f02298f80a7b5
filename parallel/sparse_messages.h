#pragma once
// Messages between ranks, sent whole or without their blocks of zeros.

#include <vector>

#include "comm/communicator.h"
#include "kernels/kernel.h"

namespace ring {

// An exchange of messages in flight. Without zeros it takes two steps, because the sizes depend on the contents: first
// one byte per block of 512 bytes says whether the block is sent, then come the blocks. The host waits for the first
// step, so the tensors must be in host memory.
class MessageExchange {
 public:
  MessageExchange() = default;
  // Starts to send. Collective. All tensors are u8; those of receives get the messages. sparse: leave zeros out.
  MessageExchange(Communicator&, const std::vector<Transfer>& sends, const std::vector<Transfer>& receives, bool sparse,
                  const ExecContext&);
  // Makes the stream wait for what is in flight. Returns false once all messages have arrived. Collective. Throws Error
  // on a lost peer or a timeout.
  bool advance(const ExecContext&);

 private:
  // A message without zeros.
  struct Packed {
    Transfer whole;
    Tensor flags, blocks;  // flags: 1 if a block is sent; blocks: those that are sent, one after another
  };
  void send_blocks(const ExecContext&);

  Communicator* comm_ = nullptr;
  std::vector<Packed> sends_, receives_;
  enum class Phase : std::uint8_t { flags, blocks, whole } phase_ = Phase::whole;
  Work work_;
};

}  // namespace ring
