#pragma once
// The plans of one stream, with the cuDNN handle that runs them.

#include <memory>

#include "core/stream.h"
#include "kernels/attention/cudnn/sdpa.h"
#include "kernels/launch_cache.h"

namespace ring::cudnn {

inline constexpr std::size_t kMostPlans = 64;
inline constexpr std::size_t kMostWorkspace = std::size_t{4} << 30;  // bytes; more is better spent on activations

class Plans {
 public:
  explicit Plans(StreamImpl&);
  ~Plans();
  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;

  // Null: cuDNN is not there or cannot do this, which is remembered as well. Valid as LaunchCache says.
  const Plan* find(const Problem&);
  void* handle() const { return handle_; }

 private:
  std::unique_ptr<Plan> make(const Problem&) const;

  int device_;
  void* handle_ = nullptr;  // cudnnHandle_t; null: no usable cuDNN
  LaunchCache<Problem, Plan> plans_;
};

}  // namespace ring::cudnn
