#pragma once
// Kernel slots. Each op has one typed slot, to which each backend adds one or more named candidates at load time. A
// call runs the candidate of the highest priority that supports the arguments. If the slot has a chooser and ctx.tuning
// is set, it runs the candidate that the chooser measured to be fastest instead.

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/scope.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace ring {

class Tuning;
struct ExecContext;

// Types of activations and GEMM operands. Accumulators are always f32 or better.
enum class Precision : std::uint8_t {
  fp32,  // f32 throughout
  tf32,  // f32 activations, GEMM operands rounded to 10 bits of mantissa (GPUs)
  bf16,  // bf16 activations and weights (GPUs)
};
constexpr DType activation_type(Precision p) { return p == Precision::bf16 ? DType::bf16 : DType::f32; }

// The minimum work of a call: floating-point operations, and bytes if each operand is moved once.
struct Cost {
  double flops = 0, bytes = 0;
  std::string shape;  // type and shape of the main operands, such as "bf16[4096,768]"
};

// One kernel call, as observers (profiler, benchmarks) see it.
struct KernelCall {
  std::string_view slot, candidate;
  Cost cost;
};

class KernelObserver {
 public:
  virtual ~KernelObserver() = default;
  // Called instead of the kernel. Must call `run`, which queues the kernel, at least once.
  virtual void call(const KernelCall&, const ExecContext&, const std::function<void()>& run) = 0;
  // Called at the start of a scope or, in the backward, of a step of the tape. Kernel calls until the matching leave()
  // belong to the scope or step.
  virtual void enter_scope(const ScopeId&, const ExecContext&) {}
  virtual void enter_step(std::string_view /*op*/, const ExecContext&) {}
  virtual void leave(const ExecContext&) {}
};

// Everything that an op needs besides its arguments.
struct ExecContext {
  Stream stream;
  Precision precision = Precision::fp32;
  bool deterministic = true;                   // requires bit-identical results from run to run
  std::shared_ptr<Tuning> tuning{};            // measured choices; if null, priorities or library heuristics decide
  std::shared_ptr<KernelObserver> observer{};  // may be null
  std::shared_ptr<Scopes> scopes = std::make_shared<Scopes>();  // scopes of this process's steps; copies share them
  Tensor empty(const Shape& shape, DType dtype = DType::f32, Lifetime lifetime = Lifetime::step) const {
    return Tensor::empty(shape, dtype, stream, lifetime);
  }
  Tensor zeros(const Shape& shape, DType dtype = DType::f32, Lifetime lifetime = Lifetime::step) const {
    return Tensor::zeros(shape, dtype, stream, lifetime);
  }
};

// Returns an upper bound of the bytes that kernels allocate temporarily on the context's device, for planning memory
// before a run. Ops whose kernels allocate much memory overload it next to their argument struct.
template <class Args>
std::size_t scratch_bytes(const Args&, const ExecContext&) {
  return 0;
}

struct KernelInfo {
  std::string_view slot, candidate;
  Backend backend;
};
// Returns the list of all candidates of all slots in this program, which add() extends. For tests and benchmarks.
std::vector<KernelInfo>& kernel_registry();

// The slot of one op: its candidates for each backend.
template <class Args>
class Kernel {
 public:
  using Fn = void (*)(const Args&, const ExecContext&);
  using Supports = bool (*)(const Args&, const ExecContext&);
  struct Candidate {
    std::string_view name;
    Fn fn;
    Supports supports = nullptr;  // null if it supports all valid arguments
    int priority = 0;             // higher is tried first; 0: last resort, never measured against higher ones
    // A cheap test that returns true if `supports` does, and possibly more often. Set it if `supports` is slow, because
    // it opens a library: `supports` is then skipped if another candidate is known to be the fastest. May be null.
    Supports may_support = nullptr;
  };

  // Returns the candidate to run if ctx.tuning is set.
  using Chooser = const Candidate& (*)(const Kernel&, const Args&, const ExecContext&);

  constexpr explicit Kernel(std::string_view name, Chooser chooser = nullptr) : name_(name), chooser_(chooser) {}

  // Adds a candidate, after those of the same priority. Call from a static initializer. Returns true.
  bool add(Backend backend, const Candidate& c) {
    auto& list = table_[static_cast<std::size_t>(backend)];
    auto at = list.begin();
    while (at != list.end() && at->priority >= c.priority) ++at;
    list.insert(at, c);
    kernel_registry().push_back({name_, c.name, backend});
    return true;
  }

  // Returns the candidate that a call would run; measures the candidates if the choice is not yet known. Throws Error
  // if no candidate supports the arguments.
  const Candidate& choose(const Args& args, const ExecContext& ctx) const {
    return chooser_ && ctx.tuning ? chooser_(*this, args, ctx) : first(args, ctx);
  }
  // Returns the candidate of the highest priority that supports the arguments. Throws Error if there is none.
  const Candidate& first(const Args& args, const ExecContext& ctx) const {
    for (const Candidate& c : candidates(ctx.stream.device().backend))
      if (!c.supports || c.supports(args, ctx)) return c;
    fail(name_, ": no ", to_string(ctx.stream.device().backend), " kernel in this build supports these arguments");
  }

  // Queues the op on ctx.stream, through ctx.observer if there is one.
  void operator()(const Args& args, const ExecContext& ctx) const {
    if (!ctx.stream.impl().computes()) return skip(args, ctx);
    const Candidate& c = choose(args, ctx);
    if (!ctx.observer) return c.fn(args, ctx);
    const KernelCall call{name_, c.name, cost(args)};  // a variable, because nvcc 13 miscompiles it as a temporary
    ctx.observer->call(call, ctx, [&] { c.fn(args, ctx); });
  }

  const std::vector<Candidate>& candidates(Backend b) const { return table_[static_cast<std::size_t>(b)]; }
  std::string_view name() const { return name_; }

 private:
  // Skips the kernel on a fake stream, which does not compute: only allocates scratch_bytes() and notifies the
  // observer.
  void skip(const Args& args, const ExecContext& ctx) const {
    const Tensor scratch = ctx.empty({static_cast<std::int64_t>(scratch_bytes(args, ctx))}, DType::u8);
    if (!ctx.observer) return;
    const KernelCall call{name_, "fake", cost(args)};
    ctx.observer->call(call, ctx, [] {});
  }

  std::string_view name_;
  Chooser chooser_;
  std::array<std::vector<Candidate>, kBackends> table_{};
};

// Helpers for `Cost cost(const Args&)`. Every op defines this function next to its argument struct, usually by
// returning cost_of(main operand, {operands read or written}). Undefined tensors count 0 bytes.
double bytes_of(std::initializer_list<Tensor> operands);
std::string short_text(const Tensor&);  // short description, such as "bf16[4096,768]"; "none" if undefined
inline Cost cost_of(const Tensor& main, std::initializer_list<Tensor> moved, double flops = 0) {
  return {flops, bytes_of(moved), short_text(main)};
}

}  // namespace ring
