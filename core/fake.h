#pragma once
// Runs steps without computing (like PyTorch's FakeTensorMode). Tensors of a fake stream have shapes, types and
// addresses, but no bytes. Kernels do not run, but observers see them, and memory is counted. A step's memory use on
// any device can thus be computed on any machine.

#include "core/tensor.h"

namespace ring {

// While it lives, Stream::create() on this thread makes fake streams, even for devices that this machine lacks.
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
bool has_bytes(const Tensor&);  // false for tensors of fake streams

}  // namespace ring
