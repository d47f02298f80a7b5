#include "core/host_tensor.h"

#include <map>

#include "core/host_pages.h"

namespace ring {
namespace {

std::map<Backend, HostCopy>& host_copies() {
  static std::map<Backend, HostCopy> all;
  return all;
}

std::map<Backend, HostMemoryCalls>& host_memories() {
  static std::map<Backend, HostMemoryCalls> all;
  return all;
}

std::shared_ptr<void> take(std::size_t bytes, const Stream& device) {
  if (!device.impl().computes()) return device.impl().host_buffer(bytes);
  const auto found = host_memories().find(device.device().backend);
  if (found != host_memories().end()) return found->second.take(bytes, device.device());
  return host_pages(bytes);
}

}  // namespace

bool register_host_memory(Backend backend, HostMemoryCalls calls) {
  return host_memories().emplace(backend, calls).second;
}

bool register_host_copy(Backend backend, HostCopy copy) { return host_copies().emplace(backend, copy).second; }

std::shared_ptr<void> take_host_memory(std::size_t bytes, const Stream& device, const std::string& details) {
  std::string reason = "the system has no more memory";
  std::shared_ptr<void> memory;
  try {
    memory = take(bytes, device);
  } catch (const Error& e) {
    reason = e.what();
  }
  if (!memory && bytes > 0)
    throw OutOfHostMemory(str("out of host memory for copies of device memory: ", bytes_text(bytes), " requested",
                              details, ": ", reason));
  return memory;
}

Tensor host_tensor(const Shape& shape, DType type, const Stream& device) {
  const std::size_t bytes = static_cast<std::size_t>(shape.numel()) * size_of(type);
  const std::shared_ptr<void> memory = take_host_memory(bytes, device);
  return Tensor::wrap(std::make_shared<Storage>(memory.get(), bytes, Device{}, memory), shape, type);
}

PageLockFacts page_lock_facts(Device device) {
  const auto found = host_memories().find(device.backend);
  return found == host_memories().end() ? PageLockFacts{} : found->second.facts(device);
}

void copy_on_host(const Tensor& dst, const Tensor& src, const Stream& stream) {
  const auto found = host_copies().find(stream.device().backend);
  if (found == host_copies().end() || !stream.impl().computes()) return copy(dst, src, stream);
  RING_CHECK(dst.bytes() == src.bytes() && dst.is_contiguous() && src.is_contiguous(), "copy of ", describe(src),
             " into ", describe(dst));
  if (dst.bytes()) found->second(dst.raw(), src.raw(), dst.bytes(), stream);
}

}  // namespace ring
