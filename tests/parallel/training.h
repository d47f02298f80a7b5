#pragma once
// The real trainer on several ranks, one thread each: what every kind of parallelism is compared by.

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "evaluate/source_loss.h"
#include "trainer/watch.h"

namespace ring::test {

// A parameter of tests that every layout has to pass.
struct Layout {
  std::string name;
  int ranks;
  std::vector<std::string> overrides;
};
inline void PrintTo(const Layout& l, std::ostream* out) { *out << l.name; }

struct TrainingOptions {
  int ranks = 1;
  int steps = 5;
  // Over the config of tests/trainer/tiny.h with one thread: "parallel.zero=2". parallel.dp etc. make the mesh.
  std::vector<std::string> overrides;
  std::string load;           // a checkpoint of any layout to start from; empty: fresh
  std::string save;           // a folder that gets a checkpoint after the last step; empty: none
  int steps_behind = 0;       // that each rank trains on after it, while a thread writes it again to `save` + "-behind"
  bool init_from = false;     // `load` gives weights only
  bool validate = false;      // compute the validation loss at the end, with train.ema of the average, too
  bool score = false;         // evaluate some requests at the end
  bool dry = false;           // ask dry_step() what a step takes of each rank
  bool verify_order = false;  // compare every collective between ranks
};

struct Training {
  std::string errors;                           // of all ranks, one per line; empty: it worked
  std::vector<double> losses, norms;            // of each step, which every rank must report alike
  std::vector<double> index_losses;             // the same; empty: there are no indexers
  std::vector<std::vector<double>> part_norms;  // of each step, which every rank must report alike; empty: not logged
  std::vector<WatchReport> watched;             // the same; empty: not watched
  double validation = 0;                        // where asked for
  double average_validation = 0, accuracy = 0;  // accuracy: of the validation
  // Sums and targets of each corpus of a mixture, of each step and of the validation.
  std::vector<std::vector<SourceLoss>> sources;
  std::vector<SourceLoss> validation_sources;
  std::vector<double> scores;  // where asked for: log-probabilities, then whether they are greedy
  std::map<std::string, std::vector<float>> tensors;  // whole, by state name ("model.blocks.0.attention.q.weight")
  std::vector<std::uint64_t> state_bytes;             // tensors of each rank's State
  std::vector<std::string> memory;                    // Trainer::lasting_memory of each rank
  std::vector<std::size_t> slabs, dry_slabs;  // of each rank's step: bytes that it took, and that it was to take
  std::int64_t segments = 0;                  // of the plan of activations
  std::vector<std::uint64_t> offloaded;       // bytes of each rank's activations in the last micro-batch
  std::string checkpoint;                     // the path of what was saved
};

// Ranks that hold the same box of a tensor must hold the same bits: an error otherwise.
Training train_on_ranks(const TrainingOptions&);

// The largest |a - b| of all tensors below a prefix, over the largest |a| of the same tensor, or over 0.01 where that
// is less (the gradient of a key's bias is nothing but rounding). Infinite where names or sizes differ or a value is
// not finite.
double largest_difference(const Training& a, const Training& b, const std::string& prefix = "model.");
// The same of losses, relative.
double largest_loss_difference(const Training& a, const Training& b);
// Tensors below the prefix have the same bits, and losses are equal.
bool same_bits(const Training& a, const Training& b, const std::string& prefix = "");

}  // namespace ring::test
