#pragma once
// Measurements of this machine and of whole training steps. Times are of work queued back to back, for long enough that
// the device leaves its burst behind.

#include <functional>
#include <string>
#include <vector>

#include "comm/mesh/mesh.h"
#include "core/quantile.h"
#include "engine/config.h"
#include "kernels/ceilings.h"
#include "trainer/trainer.h"

namespace ring {

// The rates of a large matrix product on random data, and of a large copy.
Ceilings measure_ceilings(const ExecContext&, double seconds = 1.5);
// The same, or unknown where the memory that is left does not suffice: beside a model.
Ceilings ceilings_if_they_fit(const ExecContext&, double seconds = 1.5);

// Seconds of one call, from calls queued back to back for at least `seconds`.
double sustained_seconds(const ExecContext&, double seconds, const std::function<void()>& queue_one);

Tensor random_tensor(const Shape&, DType, const ExecContext&, std::uint32_t site);

class Profiler;

// A trainer on random tokens, in documents of random lengths where samples are packed with them: everything of a run
// but its corpus.
class StepBenchmark {
 public:
  // mesh: of the processes that do the step together; none: this one alone. Error: as for a run with these settings.
  explicit StepBenchmark(Config, std::unique_ptr<Mesh> mesh = mesh_of_one());

  Trainer& trainer() { return *trainer_; }
  const Config& config() const { return config_; }
  double tokens_per_step() const { return static_cast<double>(config_.train.batch_size * config_.model.context); }
  const ExecContext& exec() const { return ctx_; }
  Mesh& mesh() { return *mesh_; }

 private:
  struct TemporaryFile {  // removed with its owner, also where the owner's constructor fails
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
  double first_seconds = 0;     // process start to the end of the first step
  std::vector<double> seconds;  // of each timed step, between the ends of neighbours
  double loss = 0;
  std::size_t peak_bytes = 0, reserved_bytes = 0;
  double median() const { return ring::median(seconds); }
};
// profiler: watches steps of its own after the timed ones; null: none.
StepTimes time_steps(StepBenchmark&, int warmup, int steps, Profiler* profiler = nullptr);

double seconds_since_process_start();

}  // namespace ring
