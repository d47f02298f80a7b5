#pragma once
// Kernel slots. An op has one typed slot; each backend's file adds one or more named candidates to it at load time.
// A call runs the first candidate, highest priority first, that supports the arguments, or leaves that to the slot's
// chooser where choices are measured.

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

// How f32 matrices are multiplied and in what type activations are kept. Sums are always f32 or better.
enum class Precision : std::uint8_t {
  fp32,  // f32 throughout
  tf32,  // f32 activations, products with operands rounded to 10 bits (GPUs)
  bf16,  // bf16 activations and weights (GPUs)
};
constexpr DType activation_type(Precision p) { return p == Precision::bf16 ? DType::bf16 : DType::f32; }

// The least work that a call can do: floating-point operations, and bytes with each operand moved once.
struct Cost {
  double flops = 0, bytes = 0;
  std::string shape;  // of the operands that tell most, such as "bf16[4096,768]"
};

// One call of a kernel, for those who watch (profiler, benchmarks).
struct KernelCall {
  std::string_view slot, candidate;
  Cost cost;
};

class KernelObserver {
 public:
  virtual ~KernelObserver() = default;
  // Must invoke `run` at least once: it queues the kernel.
  virtual void call(const KernelCall&, const ExecContext&, const std::function<void()>& run) = 0;
  // What the next calls belong to, until leave(): a scope, or, in the backward, one step of the tape.
  virtual void enter_scope(const ScopeId&, const ExecContext&) {}
  virtual void enter_step(std::string_view /*op*/, const ExecContext&) {}
  virtual void leave(const ExecContext&) {}
};

struct ExecContext {
  Stream stream;
  Precision precision = Precision::fp32;
  bool deterministic = true;                   // the same bits from run to run; candidates that cannot are passed over
  std::shared_ptr<Tuning> tuning{};            // measured choices; null: by priority, and each library's own
  std::shared_ptr<KernelObserver> observer{};  // null: nobody watches
  std::shared_ptr<Scopes> scopes = std::make_shared<Scopes>();  // of this process's steps; copies share them
  Tensor empty(const Shape& shape, DType dtype = DType::f32, Lifetime lifetime = Lifetime::step) const {
    return Tensor::empty(shape, dtype, stream, lifetime);
  }
  Tensor zeros(const Shape& shape, DType dtype = DType::f32, Lifetime lifetime = Lifetime::step) const {
    return Tensor::zeros(shape, dtype, stream, lifetime);
  }
};

// What the kernels of the context's device allocate while they run, where that is much: beside the contracts whose
// kernels do. It is for memory that is planned before a run; a candidate that takes less is no error.
template <class Args>
std::size_t scratch_bytes(const Args&, const ExecContext&) {
  return 0;
}

struct KernelInfo {
  std::string_view slot, candidate;
  Backend backend;
};
// Every candidate of every slot in this program: for the test that all slots are filled.
std::vector<KernelInfo>& kernel_registry();

template <class Args>
class Kernel {
 public:
  using Fn = void (*)(const Args&, const ExecContext&);
  using Supports = bool (*)(const Args&, const ExecContext&);
  struct Candidate {
    std::string_view name;
    Fn fn;
    Supports supports = nullptr;  // null: every valid argument
    int priority = 0;             // higher is tried first; 0: a last resort, never measured against higher ones
  };

  // Which candidate a call with measured choices runs.
  using Chooser = const Candidate& (*)(const Kernel&, const Args&, const ExecContext&);

  constexpr explicit Kernel(std::string_view name, Chooser chooser = nullptr) : name_(name), chooser_(chooser) {}

  bool add(Backend backend, const Candidate& c) {
    auto& list = table_[static_cast<std::size_t>(backend)];
    auto at = list.begin();
    while (at != list.end() && at->priority >= c.priority) ++at;
    list.insert(at, c);
    kernel_registry().push_back({name_, c.name, backend});
    return true;
  }

  // The candidate that a call would run, by measuring where that is to come. Error: none supports the arguments.
  const Candidate& choose(const Args& args, const ExecContext& ctx) const {
    return chooser_ && ctx.tuning ? chooser_(*this, args, ctx) : first(args, ctx);
  }
  // The candidate of the highest priority that supports the arguments.
  const Candidate& first(const Args& args, const ExecContext& ctx) const {
    for (const Candidate& c : candidates(ctx.stream.device().backend))
      if (!c.supports || c.supports(args, ctx)) return c;
    fail(name_, ": no ", to_string(ctx.stream.device().backend), " kernel in this build supports these arguments");
  }

  void operator()(const Args& args, const ExecContext& ctx) const {
    if (!ctx.stream.impl().computes()) return skip(args, ctx);
    const Candidate& c = choose(args, ctx);
    if (!ctx.observer) return c.fn(args, ctx);
    const KernelCall call{name_, c.name, cost(args)};  // named: nvcc 13 garbles it as an argument
    ctx.observer->call(call, ctx, [&] { c.fn(args, ctx); });
  }

  const std::vector<Candidate>& candidates(Backend b) const { return table_[static_cast<std::size_t>(b)]; }
  std::string_view name() const { return name_; }

 private:
  // On a fake stream: takes the memory that a candidate would, and shows the call.
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

// Every contract header has a `Cost cost(const Args&)`, which most write as cost_of(main operand, {operands moved}).
// Undefined tensors are left out.
double bytes_of(std::initializer_list<Tensor> operands);
std::string short_text(const Tensor&);  // "bf16[4096,768]"
inline Cost cost_of(const Tensor& main, std::initializer_list<Tensor> moved, double flops = 0) {
  return {flops, bytes_of(moved), short_text(main)};
}

}  // namespace ring
