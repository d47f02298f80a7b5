#pragma once
// Kernel slots. An op has one typed slot; each backend's file adds one or more named candidates to it at load time.
// A call runs the first candidate, highest priority first, that supports the arguments.

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"

namespace ring {

struct Context {
  Stream stream;
  Tensor empty(const Shape& shape, DType dtype = DType::f32) const { return Tensor::empty(shape, dtype, stream); }
  Tensor zeros(const Shape& shape, DType dtype = DType::f32) const { return Tensor::zeros(shape, dtype, stream); }
};

struct KernelInfo {
  std::string_view slot, candidate;
  Backend backend;
};
// Every candidate of every slot in this program: for the test that all slots are filled.
std::vector<KernelInfo>& kernel_registry();

template <class Args>
class Kernel {
 public:
  using Fn = void (*)(const Args&, const Context&);
  using Supports = bool (*)(const Args&);
  struct Candidate {
    std::string_view name;
    Fn fn;
    Supports supports = nullptr;  // null: every valid argument
    int priority = 0;             // higher is tried first
  };

  constexpr explicit Kernel(std::string_view name) : name_(name) {}

  bool add(Backend backend, const Candidate& c) {
    auto& list = table_[static_cast<std::size_t>(backend)];
    auto at = list.begin();
    while (at != list.end() && at->priority >= c.priority) ++at;
    list.insert(at, c);
    kernel_registry().push_back({name_, c.name, backend});
    return true;
  }

  void operator()(const Args& args, const Context& ctx) const {
    for (const Candidate& c : candidates(ctx.stream.device().backend))
      if (!c.supports || c.supports(args)) return c.fn(args, ctx);
    fail(name_, ": no ", to_string(ctx.stream.device().backend), " kernel in this build supports these arguments");
  }

  const std::vector<Candidate>& candidates(Backend b) const { return table_[static_cast<std::size_t>(b)]; }
  std::string_view name() const { return name_; }

 private:
  std::string_view name_;
  std::array<std::vector<Candidate>, kBackends> table_{};
};

}  // namespace ring
