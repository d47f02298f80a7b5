#pragma once
// Steps without computing (PyTorch's FakeTensorMode): a fake stream's tensors have shapes, types and addresses, but no
// bytes. Nothing runs on it; kernels are shown to observers, and memory is counted. So what a step would take on any
// device is known on any machine.

#include "core/tensor.h"

namespace ring {

// While it lives, this thread's Stream::create() makes fake streams, also of devices that are not here.
class FakeMode {
 public:
  FakeMode() : before_(on_) { on_ = true; }
  ~FakeMode() { on_ = before_; }
  FakeMode(const FakeMode&) = delete;
  FakeMode& operator=(const FakeMode&) = delete;
  static bool on() { return on_; }

 private:
  static thread_local bool on_;
  bool before_;
};

Stream make_fake_stream(Device, int threads = 0);
bool has_bytes(const Tensor&);  // it is not of a fake stream

}  // namespace ring
