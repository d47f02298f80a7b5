#pragma once
// A communicator whose other ranks do not exist (torch.distributed's backend "fake"). Every operation completes at
// once. all_gather fills `out` with copies of this rank's part; tensors without bytes (core/fake.h) are not touched.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "comm/communicator.h"

namespace ring {

// An operation that this rank would run.
struct FakeTransfer {
  std::string group;           // e.g. "cp", "dp x cp"
  std::string_view operation;  // e.g. "all_reduce", "exchange"
  std::size_t bytes = 0;       // bytes of the whole tensor that is reduced, gathered, scattered or sent
  int ranks = 1;
};
using TransferObserver = std::function<void(const FakeTransfer&)>;

std::unique_ptr<Communicator> make_fake_communicator(const std::string& group, int rank, int size, TransferObserver);

}  // namespace ring
