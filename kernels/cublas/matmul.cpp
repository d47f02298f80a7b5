// Matmul and BatchedMatmul with cuBLASLt: f32 accumulators, bias and residual added in the epilogue, gradients
// accumulated in place. GELU is also computed in the epilogue, unless the library cannot do that or a separate
// kernel was measured to be faster.

#include "kernels/matmul.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <optional>

#include "core/cuda/check.h"
#include "core/cuda/handles.h"
#include "core/log.h"
#include "kernels/cublas/plan.h"
#include "kernels/cublas/workspace.h"
#include "kernels/matmul_gelu.h"
#include "kernels/tuning.h"

namespace ring::cublas {
namespace {

constexpr std::size_t kMaxPlans = 1024;
constexpr int kCandidates = 8, kFinalists = 3;  // algorithms to measure; fastest ones to measure for longer
// Recorded instead of an algorithm if a separate kernel should compute GELU.
constexpr const char* kApart = "apart";

class TimedEvent {
 public:
  TimedEvent() { RING_CUDA_CHECK(cudaEventCreate(&event_)); }
  ~TimedEvent() { cudaEventDestroy(event_); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  void record(cudaStream_t stream) { RING_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  double seconds_since(const TimedEvent& start) const {
    float ms = 0;
    RING_CUDA_CHECK(cudaEventSynchronize(event_));  // allowed host wait: start (reads a measured time)
    RING_CUDA_CHECK(cudaEventElapsedTime(&ms, start.event_, event_));
    return ms * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Saves the output of a GEMM that accumulates into it to host memory, and restores the output in the destructor, so
// that the GEMM can be repeated for measuring. Does nothing for other GEMMs, which can be repeated as they are.
class SavedAccumulator {
 public:
  SavedAccumulator(const Problem& p, const Plan::Operands& o, const Stream& stream)
      : stream_(stream),
        device_(o.out),
        row_(static_cast<std::size_t>(p.m) * (p.out_type == CUDA_R_32F ? 4 : 2)),
        pitch_(static_cast<std::size_t>(p.out_stride) * (p.out_type == CUDA_R_32F ? 4 : 2)),
        rows_(p.adds && o.residual == o.out ? static_cast<std::size_t>(p.n) : 0),
        host_(std::make_unique_for_overwrite<std::byte[]>(row_ * rows_)) {
    if (rows_ > 0) stream_.impl().copy_rows(host_.get(), row_, device_, pitch_, row_, rows_);
    stream_.synchronize();  // allowed host wait: start (completes the copy)
  }
  ~SavedAccumulator() {
    try {
      if (rows_ > 0) stream_.impl().copy_rows(device_, pitch_, host_.get(), row_, row_, rows_);
      stream_.synchronize();  // allowed host wait: start (completes the copy)
    } catch (const Error&) {  // the device has failed; the next call that uses it throws
    }
  }
  SavedAccumulator(const SavedAccumulator&) = delete;
  SavedAccumulator& operator=(const SavedAccumulator&) = delete;

 private:
  const Stream& stream_;
  void* const device_;
  const std::size_t row_, pitch_, rows_;  // bytes per row, stride of rows in bytes, number of rows
  const std::unique_ptr<std::byte[]> host_;
};

// The workspace of one stream, and the plans and chosen algorithms of the problems seen so far.
class Engine {
 public:
  explicit Engine(StreamImpl& stream)
      : stream_(static_cast<cudaStream_t>(stream.native())), workspace_(stream), device_name_(stream.device_name()) {}

  void run(const Matmul& args, const ExecContext& ctx) {
    const Problem problem = problem_of(args, ctx.precision);
    const Plan::Operands operands = operands_of(args);
    const Entry& entry = entry_of(problem, args, operands, ctx);
    if (!entry.algo) return run_apart(args, ctx);
    entry.plan->run(workspace_.handle(), *entry.algo, operands, workspace_.data(), Workspace::kBytes, stream_);
  }

  void run(const BatchedMatmul& args, const ExecContext& ctx) {
    const Problem problem = problem_of(args, ctx.precision);
    const bool adds = args.add.defined();
    Plan::Operands operands{args.b.raw(), args.a.raw(), adds ? args.add.raw() : args.c.raw(),
                            nullptr,      args.c.raw(), adds ? args.beta : 0.0f,
                            nullptr};
    operands.alpha = args.alpha;
    const Entry& entry = entry_of(problem, {}, operands, ctx);
    entry.plan->run(workspace_.handle(), *entry.algo, operands, workspace_.data(), Workspace::kBytes, stream_);
  }

 private:
  struct Entry {
    std::unique_ptr<Plan> plan;
    std::optional<cublasLtMatmulAlgo_t> algo;  // nullopt if a separate kernel computes the activation
    std::uint64_t generation = 0;              // Tuning::generation() at the choice; 0 without tuning
  };

  void run_apart(const Matmul& args, const ExecContext& ctx) {
    product_then_gelu(args, ctx, [this](const Matmul& plain, const ExecContext& inside) { run(plain, inside); });
  }

  static Plan::Operands operands_of(const Matmul& m) {
    const bool residual = m.residual.defined();
    return {m.b.raw(),
            m.a.raw(),
            residual ? m.residual.raw() : m.c.raw(),
            m.bias.defined() ? m.bias.raw() : nullptr,
            m.c.raw(),
            residual ? 1.0f : m.beta,
            has_gelu(m) ? gelu_operand(m).raw() : nullptr};
  }

  const Entry& entry_of(const Problem& problem, const Matmul& args, const Plan::Operands& operands,
                        const ExecContext& ctx) {
    const auto at = plans_.find(problem);
    if (at != plans_.end() && (!ctx.tuning || at->second.generation == ctx.tuning->generation())) return at->second;
    if (plans_.size() >= kMaxPlans) plans_.clear();  // happens if shapes keep changing, as during generation
    Entry entry{nullptr, {}, ctx.tuning ? ctx.tuning->generation() : 0};
    if (problem.gelu == Problem::Gelu::none || problem.may_fuse_gelu()) {
      entry.plan = std::make_unique<Plan>(problem, operands.gelu);
      entry.algo = choose(problem, *entry.plan, args, operands, ctx);
    }
    return plans_.insert_or_assign(problem, std::move(entry)).first->second;
  }

  // Returns the recorded algorithm of the problem, if there is one. Otherwise returns the fastest algorithm if
  // ctx.tuning measures, else the algorithm that the library ranks first. Returns nullopt if GELU is faster as a
  // separate kernel, or if the library cannot fuse GELU.
  std::optional<cublasLtMatmulAlgo_t> choose(const Problem& problem, const Plan& plan, const Matmul& args,
                                             const Plan::Operands& operands, const ExecContext& ctx) {
    if (!ctx.tuning) return favourite(problem, plan);
    const std::string key = key_of(problem);
    const bool recorded = ctx.tuning->has_recorded(key);
    const std::optional<std::string> known = ctx.tuning->find(key);
    const bool usable = known && can_use(*known, problem, plan);
    // Algorithms with large clusters are no longer chosen, but a choice store of an earlier version may name one. It is
    // ignored unless this run has used or recorded it, because a run must keep its algorithms.
    if (usable && (recorded || !has_large_clusters(*known))) return algorithm_of(*known);
    if (known && !usable)
      log::warn("matmul: the recorded algorithm for ", problem.text(),
                " does not run here. Another one is chosen, so results may differ in rounding from earlier ones");
    const auto candidates = candidates_of(problem, plan, ctx.tuning->measures() ? kCandidates : 1);
    if (candidates.empty()) return std::nullopt;
    // For some shapes the library has only algorithms with large clusters. For these, a stored choice of such an
    // algorithm remains valid.
    if (usable && cublas::has_large_clusters(candidates.front())) return algorithm_of(*known);
    const std::string choice =
        ctx.tuning->measures() ? fastest(problem, plan, candidates, args, operands, ctx) : to_text(candidates.front());
    // Does not record a choice that can_use() rejects, because every run would reject it and choose again.
    if (!can_use(choice, problem, plan)) return candidates.front();
    const std::string holds = ctx.tuning->record(key, choice, known);
    return algorithm_of(can_use(holds, problem, plan) ? holds : choice);
  }

  std::optional<cublasLtMatmulAlgo_t> favourite(const Problem& problem, const Plan& plan) {
    const auto found = candidates_of(problem, plan, 1);
    return found.empty() ? std::nullopt : std::optional(found.front());
  }

  bool can_use(const std::string& choice, const Problem& problem, const Plan& plan) {
    if (choice == kApart) return problem.gelu != Problem::Gelu::none;
    cublasLtMatmulAlgo_t algo;
    return from_text(choice, algo) && plan.can_run(workspace_.handle(), algo, Workspace::kBytes);
  }

  static bool has_large_clusters(const std::string& choice) {
    const auto algo = algorithm_of(choice);
    return algo && cublas::has_large_clusters(*algo);
  }

  static std::optional<cublasLtMatmulAlgo_t> algorithm_of(const std::string& choice) {
    cublasLtMatmulAlgo_t algo;
    return from_text(choice, algo) ? std::optional(algo) : std::nullopt;
  }

  // Measures the candidates and, for a GEMM with an activation, also two separate kernels. Returns the fastest choice.
  std::string fastest(const Problem& problem, const Plan& plan, std::vector<cublasLtMatmulAlgo_t> candidates,
                      const Matmul& args, const Plan::Operands& operands, const ExecContext& ctx) {
    const cublasLtMatmulAlgo_t first = candidates.front();
    std::erase_if(candidates,
                  [&](const auto& algo) { return !plan.can_run(workspace_.handle(), algo, Workspace::kBytes); });
    if (candidates.empty()) return to_text(first);
    const Choice best = fastest(plan, candidates, problem, operands, ctx);
    const bool apart = problem.gelu != Problem::Gelu::none && seconds_apart(args, ctx) < best.seconds;
    return apart ? kApart : to_text(best.algo);
  }

  // Measures GEMM and activation as two kernels. Writes to the real output: it holds no results yet, because a GEMM
  // with an activation does not accumulate.
  double seconds_apart(const Matmul& args, const ExecContext& ctx) {
    const auto work = [&] { run_apart(args, ctx); };
    seconds_of(work, 1);  // the first call chooses the GEMM's algorithm
    return seconds_of(work, repeats_of(seconds_of(work, 1), ctx));
  }

  struct Choice {
    cublasLtMatmulAlgo_t algo;
    double seconds = 0;  // 0 if not measured
  };

  // Returns at most `count` algorithms, the library's first choice first. Throws Error if there are none, except for a
  // GEMM with an activation, which two separate kernels can compute.
  std::vector<cublasLtMatmulAlgo_t> candidates_of(const Problem& problem, const Plan& plan, int count) {
    std::vector<cublasLtMatmulAlgo_t> found = plan.algorithms(workspace_.handle(), Workspace::kBytes, count);
    if (found.empty() && problem.gelu == Problem::Gelu::none)
      fail("matmul: cuBLASLt has no algorithm for ", problem.text());
    return found;
  }

  template <class Work>
  double seconds_of(const Work& work, int repeats) {
    TimedEvent start, end;
    start.record(stream_);
    for (int i = 0; i < repeats; ++i) work();
    end.record(stream_);
    return end.seconds_since(start) / repeats;
  }
  static int repeats_of(double seconds, const ExecContext& ctx) {
    constexpr double kShortest = 1e-7;  // lower bound of a measured time, which may be 0
    return 1 + static_cast<int>(ctx.tuning->seconds() / std::max(seconds, kShortest));
  }

  // Measures the candidates and returns the fastest. Writes to the real output, so that measuring needs no device
  // memory beyond the step's: the memory plan holds from the first step on, and no choice depends on free memory.
  Choice fastest(const Plan& plan, const std::vector<cublasLtMatmulAlgo_t>& candidates, const Problem& p,
                 const Plan::Operands& operands, const ExecContext& ctx) {
    if (candidates.size() == 1 && p.gelu == Problem::Gelu::none) return {candidates.front()};
    const SavedAccumulator sums(p, operands, ctx.stream);
    const auto time = [&](const cublasLtMatmulAlgo_t& algo, int repeats) {
      return seconds_of(
          [&] { plan.run(workspace_.handle(), algo, operands, workspace_.data(), Workspace::kBytes, stream_); },
          repeats);
    };
    struct Timed {
      double seconds;
      std::size_t index;
    };
    std::vector<Timed> order;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      time(candidates[i], 1);  // the first call loads the kernel
      order.push_back({time(candidates[i], 1), i});
    }
    const auto quicker = [](const Timed& a, const Timed& b) { return a.seconds < b.seconds; };
    std::sort(order.begin(), order.end(), quicker);
    order.resize(std::min<std::size_t>(order.size(), kFinalists));
    for (Timed& t : order) t.seconds = time(candidates[t.index], repeats_of(t.seconds, ctx));
    const Timed best = *std::min_element(order.begin(), order.end(), quicker);
    return {candidates[best.index], best.seconds};
  }

  std::string key_of(const Problem& problem) const {
    return str("matmul, ", device_name_, ", cuBLASLt ", library().version(), ", ", problem.text());
  }

  cudaStream_t stream_;
  Workspace workspace_;
  std::string device_name_;
  std::map<Problem, Entry> plans_;
};

// Computes a Matmul with k = 0: zeroes c if beta is 0, else leaves c unchanged. Throws Error if there is a bias or
// residual.
void without_terms(const Matmul& args, const ExecContext& ctx) {
  RING_CHECK(!args.bias.defined() && !args.residual.defined() && args.c.is_contiguous(),
             "matmul: an empty product with ", "bias or residual");
  if (args.beta == 0) fill_zero(args.c, ctx.stream);
}

void run_matmul(const Matmul& args, const ExecContext& ctx) {
  if (args.c.numel() == 0) return;
  if (args.a.numel() == 0)
    return has_gelu(args) ? product_then_gelu(args, ctx, without_terms) : without_terms(args, ctx);
  const cuda::OnDevice on(ctx.stream.device().index);
  ctx.stream.impl().resource<Engine>().run(args, ctx);
}

void run_batched(const BatchedMatmul& args, const ExecContext& ctx) {
  if (args.c.numel() == 0) return;
  RING_CHECK(args.a.numel() > 0, "batched_matmul: a is empty: ", describe(args.a));
  const cuda::OnDevice on(ctx.stream.device().index);
  ctx.stream.impl().resource<Engine>().run(args, ctx);
}

const bool added[] = {
    matmul_kernel.add(Backend::cuda, {"cublaslt", run_matmul}),
    batched_matmul_kernel.add(Backend::cuda, {"cublaslt", run_batched}),
};

}  // namespace
}  // namespace ring::cublas
