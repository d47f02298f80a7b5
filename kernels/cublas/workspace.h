#pragma once
// A stream's cuBLASLt handle and the memory that the library's kernels may use.

#include <cstdint>

#include "core/stream.h"
#include "kernels/cublas/library.h"
#include "kernels/matmul.h"

namespace ring::cublas {

class Workspace {
 public:
  static constexpr std::size_t kBytes = kMatmulWorkspaceBytes;

  explicit Workspace(StreamImpl& stream) : memory_(kBytes + kAlign, stream.device, stream.allocator, Lifetime::run) {
    RING_CUBLAS_CHECK(library().create(&handle_));
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    data_ = reinterpret_cast<void*>((address + kAlign - 1) / kAlign * kAlign);
  }
  ~Workspace() { library().destroy(handle_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  cublasLtHandle_t handle() const { return handle_; }
  void* data() const { return data_; }

 private:
  static constexpr std::size_t kAlign = 256;

  Storage memory_;
  void* data_;
  cublasLtHandle_t handle_ = nullptr;
};

}  // namespace ring::cublas
