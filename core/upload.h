#pragma once
#include "core/tensor.h"

namespace ring {

// Returns a copy of the vector on the device, like from_host() (core/tensor.h), but does not wait for the device.
template <class T>
Tensor upload(const std::vector<T>& host, const Stream& stream) {
  Tensor t = Tensor::empty({static_cast<std::int64_t>(host.size())}, DTypeOf<T>::value, stream);
  if (t.bytes()) stream.impl().upload(t.raw(), host.data(), t.bytes());
  return t;
}

}  // namespace ring
