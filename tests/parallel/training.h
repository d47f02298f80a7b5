#pragma once
// The real trainer on several ranks, one thread each: the basis of comparison for every kind of parallelism.

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "evaluate/source_loss.h"
#include "trainer/watch.h"

namespace ring::test {

// Parameter of tests that run in every layout.
struct Layout {
  std::string name;
  int ranks;
  std::vector<std::string> overrides;
};
inline void PrintTo(const Layout& l, std::ostream* out) { *out << l.name; }

struct TrainingOptions {
  int ranks = 1;
  int steps = 5;
  // Settings such as "parallel.zero=2", applied to the config of tests/trainer/tiny.h with one thread. parallel.dp etc.
  // define the mesh.
  std::vector<std::string> overrides;
  std::string load;             // checkpoint of any layout to start from; empty: start fresh
  std::string save;             // folder for a checkpoint after the last step; empty: none
  int steps_behind = 0;         // steps that ranks train on while a thread writes it again to `save` + "-behind"
  bool init_from = false;       // true: take only weights from `load`
  bool validate = false;        // compute the validation loss at the end, with train.ema also that of the average
  bool validate_often = false;  // also compute, and ignore, the validation losses after each step
  bool score = false;           // evaluate some requests at the end
  bool dry = false;             // ask dry_step() how much memory a step takes on each rank
  bool verify_order = false;    // compare every collective between ranks
};

struct Training {
  std::string errors;                           // errors of all ranks, one per line; empty: success
  std::vector<double> losses, norms;            // of each step; every rank must report the same
  std::vector<double> index_losses;             // likewise; empty: there are no indexers
  std::vector<std::vector<double>> part_norms;  // of each step; every rank must report the same; empty: not logged
  std::vector<WatchReport> watched;             // likewise; empty: not watched
  double validation = 0;                        // if requested
  double average_validation = 0, accuracy = 0;  // accuracy: of the validation
  // Sums and targets of each corpus of a mixture, for each step and for the validation.
  std::vector<std::vector<SourceLoss>> sources;
  std::vector<SourceLoss> validation_sources;
  std::vector<double> scores;                         // if requested: log-probabilities, then 1 for each greedy answer
  std::map<std::string, std::vector<float>> tensors;  // whole, by state name ("model.blocks.0.attention.q.weight")
  std::vector<std::uint64_t> state_bytes;             // bytes of the tensors in each rank's State
  std::vector<std::string> memory;                    // Trainer::lasting_memory_text of each rank
  std::vector<std::size_t> slabs, dry_slabs;          // bytes that each rank's step took, and was planned to take
  std::vector<std::size_t> unplanned, dry_unplanned;  // same for StepArena::unplanned_peak()
  std::int64_t segments = 0;                          // in the activation plan
  std::vector<std::uint64_t> offloaded;  // offloaded bytes of each rank's activations in the last micro-batch
  std::string checkpoint;                // path of the saved checkpoint
};

// Trains. Fails if ranks that hold the same box of a tensor hold different bits.
Training train_on_ranks(const TrainingOptions&);

// Returns the largest |a - b| over all tensors below a prefix, relative to the largest |a| of the same tensor, or to
// 0.01 if that is larger (the gradient of a key's bias is pure rounding error). Infinite if names or sizes differ, or a
// value is not finite.
double largest_difference(const Training& a, const Training& b, const std::string& prefix = "model.");
// Returns the largest relative difference of losses.
double largest_loss_difference(const Training& a, const Training& b);
// Returns true if tensors below the prefix are bit-identical and losses are equal.
bool same_bits(const Training& a, const Training& b, const std::string& prefix = "");

}  // namespace ring::test
