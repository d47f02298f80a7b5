#pragma once
// Measurements of this machine and of whole training steps. Times are of work queued back to back, for long enough that
// the device leaves its burst behind.

#include <functional>
#include <string>
#include <vector>

#include "trainer/config.h"
#include "trainer/trainer.h"

namespace ring {

// What the device sustains: a large matrix product on random data, and a large copy, bytes read and written.
struct Ceilings {
  double flops_per_second = 0, bytes_per_second = 0;
};
Ceilings measure_ceilings(const Context&, double seconds = 1.5);

// Seconds of one call, from calls queued back to back for at least `seconds`.
double sustained_seconds(const Context&, double seconds, const std::function<void()>& queue_one);

Tensor random_tensor(const Shape&, DType, const Context&, std::uint32_t site);

// A trainer on random tokens: everything of a run but its corpus.
class StepBenchmark {
 public:
  explicit StepBenchmark(Config);  // Error: as for a run with these settings
  ~StepBenchmark();

  Trainer& trainer() { return *trainer_; }
  const Config& config() const { return config_; }
  const Context& context() const { return ctx_; }

 private:
  Config config_;
  std::string corpus_;  // a file of its own, removed at once
  Context ctx_;
  std::unique_ptr<Communicator> comm_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Trainer> trainer_;
};

struct StepTimes {
  double first_seconds = 0;     // process start to the end of the first step
  std::vector<double> seconds;  // of each timed step, between the ends of neighbours
  double loss = 0;
  std::size_t peak_bytes = 0, reserved_bytes = 0;
  double median() const;
};
StepTimes time_steps(StepBenchmark&, int warmup, int steps);

double seconds_since_process_start();

}  // namespace ring
