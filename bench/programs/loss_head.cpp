// Measures peak memory and time of the loss head with its gradients, compared with the size of the logits, which it
// never materializes.
//   bench_loss_head [--tokens 8192] [--vocab 131072] [--width 64] [--threads N]
#include <chrono>
#include <cstdio>

#include "autograd/ops.h"
#include "cli/command.h"
#include "core/cpu/thread_pool.h"
#include "core/philox.h"

namespace {

ring::Tensor random_tensor(const ring::Shape& shape, const ring::ExecContext& ctx, std::uint32_t site) {
  const ring::Tensor t = ctx.empty(shape);
  float* out = t.data<float>();
  ctx.stream.pool().parallel_for(t.numel(), 4096, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i)
      out[i] = ring::to_uniform(ring::random_bits({1, 0, site}, static_cast<std::uint64_t>(i))) - 0.5f;
  });
  return t;
}

}  // namespace

int main(int argc, char** argv) try {
  std::int64_t tokens = 8192, vocab = 131072, width = 64;
  int threads = ring::default_threads();
  ring::Program program("bench_loss_head", "Peak memory and time of the loss head");
  program.add_number("--tokens", tokens, "rows of the input", 1, ring::kMaxLength);
  program.add_number("--vocab", vocab, "columns of the logits", 1, ring::kMaxCount);
  program.add_number("--width", width, "columns of the input", 1, ring::kMaxCount);
  program.add_number("--threads", threads, "threads of the pool", 1, ring::kMaxThreads);
  program.parse({argv + 1, argv + argc});

  const ring::ExecContext ctx{ring::Stream::cpu(threads)};
  ring::Var x{random_tensor({tokens, width}, ctx, 1), std::make_shared<ring::GradSlot>()};
  ring::Var w{random_tensor({vocab, width}, ctx, 2), std::make_shared<ring::GradSlot>()};
  w.slot->grad = ctx.zeros({vocab, width});  // preallocated, as if it were in a parameter's bucket
  w.slot->bound = true;
  std::vector<std::int32_t> targets;
  for (std::int64_t i = 0; i < tokens; ++i) targets.push_back(static_cast<std::int32_t>(i * 7919 % vocab));
  ring::LossHead head;
  head.targets = ring::from_host(targets, ctx.stream);
  head.vocab = vocab;
  head.scale = 1.0f / static_cast<float>(tokens);

  ctx.stream.allocator()->reset_peak();
  const double before = static_cast<double>(ctx.stream.allocator()->stats().in_use);
  const auto start = std::chrono::steady_clock::now();
  ring::Tape tape;
  ring::Run run{ctx, &tape};
  const ring::LossOutput out = cross_entropy_head(run, x, w, head);
  tape.backward(out.sum.slot, {}, ctx);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double peak = static_cast<double>(ctx.stream.allocator()->stats().peak) - before;
  const double logits = static_cast<double>(tokens * vocab) * sizeof(float);
  const double flops = 6.0 * static_cast<double>(tokens * vocab * width);
  std::printf(
      "%lld tokens, vocabulary %lld, width %lld, %d threads: peak %.1f MB, full logits %.1f MB (%.2f %%), %.2f s, %.0f "
      "GFLOP/s\n",
      static_cast<long long>(tokens), static_cast<long long>(vocab), static_cast<long long>(width), threads, peak / 1e6,
      logits / 1e6, 100 * peak / logits, seconds, flops / seconds / 1e9);
  return 0;
} catch (const ring::HelpAsked& e) {
  std::fputs(e.text.c_str(), stdout);
} catch (const std::exception& e) {
  std::fprintf(stderr, "bench_loss_head: %s\n", e.what());
  return 1;
}
