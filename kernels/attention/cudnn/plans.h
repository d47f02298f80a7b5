#pragma once
// cuDNN plans of one stream, with the cuDNN handle that runs them.

#include <memory>

#include "core/stream.h"
#include "kernels/attention/cudnn/sdpa.h"
#include "kernels/launch_cache.h"

namespace ring::cudnn {

inline constexpr std::size_t kMaxPlans = 64;
inline constexpr std::size_t kMaxWorkspace = std::size_t{4} << 30;  // bytes; more memory is better spent on activations

class Plans {
 public:
  explicit Plans(StreamImpl&);
  ~Plans();
  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;

  // Returns the plan for a problem; null if there is no cuDNN or it does not support the problem. Both outcomes are
  // cached. Only launches that are queued on the stream before the next call may use the plan.
  const Plan* find(const Problem&);
  void* handle() const { return handle_; }

 private:
  std::unique_ptr<Plan> make(const Problem&) const;

  int device_;
  void* handle_ = nullptr;  // cudnnHandle_t; null if there is no usable cuDNN
  LaunchCache<Problem, Plan> plans_;
};

}  // namespace ring::cudnn
