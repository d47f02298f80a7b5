#pragma once
// Measures this machine and whole training steps. Work is queued back to back, long enough for the device to leave its
// burst clocks.

#include <functional>
#include <string>
#include <vector>

#include "comm/mesh/mesh.h"
#include "core/quantile.h"
#include "engine/config.h"
#include "kernels/ceilings.h"
#include "trainer/trainer.h"

namespace ring {

// Measures the rates of a large GEMM and of a large copy, both on random data.
Ceilings measure_ceilings(const ExecContext&, double seconds = 1.5);
// Same, but returns unknown ceilings if there is too little memory: for use while a model is loaded.
Ceilings try_measure_ceilings(const ExecContext&, double seconds = 1.5);

// Returns seconds per call, with calls queued back to back for at least `min_seconds`.
double measure_sustained_seconds(const ExecContext&, double min_seconds, const std::function<void()>& queue_one);

// Returns standard normal values; each `site` has different ones.
Tensor random_tensor(const Shape&, DType, const ExecContext&, std::uint32_t site);

class Profiler;

// A trainer on random tokens, with everything that a run has except a corpus. If samples are packed with documents, the
// documents have random lengths.
class StepBenchmark {
 public:
  // mesh: the processes that train together; by default only this process. Throws the same errors as a run with these
  // settings.
  explicit StepBenchmark(Config, std::unique_ptr<Mesh> mesh = mesh_of_one());

  Trainer& trainer() { return *trainer_; }
  const Config& config() const { return config_; }
  double tokens_per_step() const { return static_cast<double>(config_.train.batch_size * config_.model.context); }
  const ExecContext& exec() const { return ctx_; }
  Mesh& mesh() { return *mesh_; }

 private:
  struct TemporaryFile {  // removed on destruction, even if the owner's constructor throws
    explicit TemporaryFile(std::string p) : path(std::move(p)) {}
    ~TemporaryFile();
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;
    const std::string path;
  };

  std::unique_ptr<Mesh> mesh_;
  Config config_;
  TemporaryFile corpus_;
  ExecContext ctx_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Trainer> trainer_;
};

struct StepTimes {
  double first_seconds = 0;     // time from the start of the process to the end of the first step
  std::vector<double> seconds;  // seconds of each timed step, from the end of the previous step
  double loss = 0;
  std::size_t peak_bytes = 0, reserved_bytes = 0;
  double median() const { return ring::median(seconds); }
};
// profiler: watches additional steps after the timed ones; may be null.
StepTimes time_steps(StepBenchmark&, int warmup, int steps, Profiler* profiler = nullptr);

}  // namespace ring
