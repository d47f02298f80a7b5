#pragma once
// The plans of one stream, with the cuDNN handle that runs them: the least recently used goes when there are too many.

#include <map>
#include <memory>

#include "core/stream.h"
#include "kernels/attention/cudnn/sdpa.h"

namespace ring::cudnn {

inline constexpr std::size_t kMostPlans = 64;
inline constexpr std::size_t kMostWorkspace = std::size_t{4} << 30;  // bytes; more is better spent on activations

class Plans {
 public:
  explicit Plans(StreamImpl&);
  ~Plans();
  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;

  // Null: cuDNN is not there or cannot do this, which is remembered as well. Valid until the next call.
  const Plan* find(const Problem&);
  void* handle() const { return handle_; }

 private:
  struct Entry {
    std::unique_ptr<Plan> plan;
    std::uint64_t last_use = 0;
  };
  std::unique_ptr<Plan> make(const Problem&) const;
  void make_room();

  int device_;
  void* handle_ = nullptr;  // cudnnHandle_t; null: no usable cuDNN
  std::map<Problem, Entry> plans_;
  std::uint64_t uses_ = 0;
};

}  // namespace ring::cudnn
