#pragma once
// A group whose other ranks are not there: every operation ends at once (torch.distributed's backend "fake"). Gathered
// are copies of this rank's own part, and where tensors have no bytes (core/fake.h) nothing at all.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "comm/communicator.h"

namespace ring {

// A call as this rank would make it.
struct FakeTransfer {
  std::string group;           // "cp", "dp x cp"
  std::string_view operation;  // "all_reduce", "exchange", ..
  std::size_t bytes = 0;       // of the whole tensor: reduced, gathered, scattered or sent
  int ranks = 1;
};
using TransferObserver = std::function<void(const FakeTransfer&)>;

std::unique_ptr<Communicator> make_fake_communicator(const std::string& group, int rank, int size, TransferObserver);

}  // namespace ring
