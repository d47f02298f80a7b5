#pragma once
// Messages between ranks, which are sent whole or without their blocks of zeros.

#include <vector>

#include "comm/communicator.h"
#include "kernels/kernel.h"

namespace ring {

// An exchange of messages in flight. If zeros are left out, the sizes depend on the contents, so there are two rounds:
// ranks first exchange one byte per block of 512 bytes, which says whether the block is sent, and then the blocks. The
// host waits for the first round, so the tensors must be in host memory.
class MessageExchange {
 public:
  MessageExchange() = default;
  // Starts the exchange. Collective. Tensors are u8; those of `receives` get the messages. sparse: leave out zeros.
  MessageExchange(Communicator&, const std::vector<Transfer>& sends, const std::vector<Transfer>& receives, bool sparse,
                  const ExecContext&);
  // Makes the stream wait for the messages in flight. Returns true if it started a second round, and false once all
  // messages have arrived. Collective. Throws Error on a lost peer or a timeout.
  bool advance(const ExecContext&);

 private:
  // A message without zeros.
  struct Packed {
    Transfer whole;
    Tensor flags, blocks;  // flags: 1 for each block that is sent; blocks: these blocks, back to back
  };
  void send_blocks(const ExecContext&);

  Communicator* comm_ = nullptr;
  std::vector<Packed> sends_, receives_;
  enum class Phase : std::uint8_t { flags, blocks, whole } phase_ = Phase::whole;
  Work work_;
};

}  // namespace ring
