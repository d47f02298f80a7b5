#include "bench/step.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "core/files.h"
#include "core/philox.h"
#include "data/token_store.h"
#include "engine/devices.h"
#include "evaluate/session.h"
#include "inspect/profiler.h"
#include "job/start_times.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "model/attention_schedule.h"
#include "text/tokenizer.h"

namespace ring {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Returns the number of tokens in the n-th piece of the corpus: a document of random length if samples are packed with
// documents, otherwise a part of the single document.
std::size_t part_size(const Config& c, std::uint64_t n) {
  if (!c.data.packing.documents) return 1 << 16;
  return 1 + (std::uint64_t{random_bits({1, 0, 1}, n)} * static_cast<std::uint64_t>(c.model.context) >> 32);
}

// Writes enough windows that no window is read twice within a benchmark.
std::string write_corpus(const Config& c) {
  const std::string path = str(temporary_folder(), "/ringmaster-bench-", ::getpid(), ".h5");
  TokenStoreWriter writer(path, c.model.vocab_size);
  const std::int64_t count = std::max<std::int64_t>(1 << 20, 4 * c.train.batch_size * c.model.context);
  std::vector<std::int32_t> part;
  for (std::int64_t done = 0, n = 0; done <= count; done += std::ssize(part), ++n) {
    if (n == 0 || c.data.packing.documents) writer.begin_document(Split::train);
    part.resize(part_size(c, static_cast<std::uint64_t>(n)));
    for (std::size_t i = 0; i < part.size(); ++i) {
      const std::uint32_t bits = random_bits({1, 0, 0}, static_cast<std::uint64_t>(done) + i);
      part[i] = static_cast<std::int32_t>(std::uint64_t{bits} * static_cast<std::uint64_t>(c.model.vocab_size) >> 32);
    }
    writer.append(Split::train, part);
  }
  writer.finish(*bytes_tokenizer(), "random tokens");
  return path;
}

Config given_sizes(Config c) {
  if (c.train.micro_batch == kAutoMicroBatch || c.train.mlp_chunk == kAutoMlpChunk ||
      c.train.sequence_chunk == kAutoSequenceChunk)
    fail(
        "train.micro_batch, .mlp_chunk and .sequence_chunk: auto is chosen only when a run begins. Give a benchmark "
        "the numbers that `ringmaster plan` shows");
  c.train.batch_sizes.clear();                            // measures the largest batch size
  c.model = with_attention_at(c.model, kAfterAllTokens);  // measures the attention of the last steps
  return c;
}

Config with_corpus(Config c, const std::string& corpus) {
  c.data.path = corpus;
  c.data.mixture.clear();
  return c;
}

}  // namespace

double measure_sustained_seconds(const ExecContext& ctx, double min_seconds, const std::function<void()>& queue_one) {
  queue_one();
  ctx.stream.synchronize();  // allowed host wait: diagnosis
  Clock::time_point start = Clock::now();
  queue_one();
  ctx.stream.synchronize();  // allowed host wait: diagnosis
  const int batch = std::clamp(static_cast<int>(0.02 / std::max(1e-7, seconds_since(start))), 1, 1000);
  std::int64_t calls = 0;
  start = Clock::now();
  do {
    for (int i = 0; i < batch; ++i) queue_one();
    ctx.stream.synchronize();  // allowed host wait: diagnosis
    calls += batch;
  } while (seconds_since(start) < min_seconds);
  return seconds_since(start) / static_cast<double>(calls);
}

Tensor random_tensor(const Shape& shape, DType dtype, const ExecContext& ctx, std::uint32_t site) {
  const Tensor t = ctx.empty(shape, dtype);
  random_normal_kernel({t.view({t.numel()}), {1, 0, site}, 1.0f}, ctx);
  return t;
}

Ceilings measure_ceilings(const ExecContext& ctx, double seconds) {
  const bool cpu = ctx.stream.device().backend == Backend::cpu;
  const std::int64_t side = cpu ? 1024 : 8192, length = std::int64_t{1} << (cpu ? 25 : 29);
  const DType type = activation_type(ctx.precision);
  Ceilings c;
  {
    const Tensor a = random_tensor({side, side}, type, ctx, 1), b = random_tensor({side, side}, type, ctx, 2);
    const Tensor out = ctx.empty({side, side}, type);
    const double t = measure_sustained_seconds(
        ctx, seconds, [&] { matmul_kernel({.a = a, .b = b, .c = out, .transpose_b = true}, ctx); });
    c.flops_per_second = 2.0 * static_cast<double>(side) * static_cast<double>(side) * static_cast<double>(side) / t;
  }
  const Tensor from = random_tensor({length}, type, ctx, 3), to = ctx.empty({length}, type);
  const double t = measure_sustained_seconds(ctx, seconds / 3, [&] {
    if (cpu)
      axpby_kernel({.x = from, .out = to}, ctx);  // uses all threads
    else
      copy(to, from, ctx.stream);
  });
  c.bytes_per_second = 2.0 * static_cast<double>(from.bytes()) / t;
  return c;
}

Ceilings try_measure_ceilings(const ExecContext& ctx, double seconds) {
  try {
    return measure_ceilings(ctx, seconds);
  } catch (const OutOfMemory&) {
    return {};
  }
}

StepBenchmark::StepBenchmark(Config config, std::unique_ptr<Mesh> mesh)
    : mesh_(std::move(mesh)),
      config_(resolve_config(given_sizes(std::move(config)), bytes_tokenizer()->vocab_size(), *mesh_)),
      corpus_(write_corpus(config_)),
      ctx_(make_exec_context(config_, mesh_->device().index)) {
  const Corpora corpora = open_corpora(with_corpus(config_, corpus_.path).data);
  loader_ = std::make_unique<Loader>(corpora, loader_options(config_, *mesh_));
  trainer_ = std::make_unique<Trainer>(config_, ctx_, *mesh_, *loader_);
}

StepBenchmark::TemporaryFile::~TemporaryFile() {
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
}

StepTimes time_steps(StepBenchmark& bench, int warmup, int steps, Profiler* profiler) {
  Trainer& trainer = bench.trainer();
  StepTimes times;
  const auto finish_one = [&](int index) {
    const StepReport r = trainer.finish();
    if (!r.accepted) fail("step ", r.step, " of the benchmark is not finite: loss ", r.loss, ", norm ", r.norm);
    times.loss = r.loss;
    if (index == 0) times.first_seconds = seconds_since_process_start();
    if (index >= warmup) times.seconds.push_back(r.seconds);
  };
  int finished = 0;
  for (int i = 0; i < warmup + steps; ++i) {
    trainer.launch();
    // Lets no step be in flight when timed steps begin: if launching is the bottleneck, steps launched earlier would
    // hide the launch time.
    while (trainer.in_flight() > (i == 0 || i + 1 == warmup ? 0 : trainer.max_in_flight())) finish_one(finished++);
  }
  while (trainer.in_flight() > 0) finish_one(finished++);
  const MemoryStats memory = bench.exec().stream.allocator()->stats();
  times.peak_bytes = memory.peak;
  times.reserved_bytes = memory.reserved;
  for (bool last = !profiler; !last;) {
    profiler->before_launch(trainer);
    trainer.launch();
    last = profiler->after_launch(trainer);
    while (trainer.in_flight() > (last ? 0 : trainer.max_in_flight())) trainer.finish();
  }
  return times;
}

}  // namespace ring
