#pragma once
// ChoiceMap between implementations that differ in speed and in rounding: algorithms of matrix products, attention
// kernels, schedules of context parallelism. They follow from the device model, the libraries' versions, this program
// and the shape, so that equal settings give equal bits: a run looks in its own record, then in the tables that the
// program carries, then in a store shared with other runs, and measures what none of them has.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "kernels/choice_file.h"
#include "kernels/choice_store.h"

namespace ring {

// FLOP/s of a GPU, roughly: enough to tell what takes too long to be tried.
inline constexpr double kRoughGpuFlops = 4e14;

class Tuning {
 public:
  static constexpr double kShort = 4e-3;

  struct Sources {
    std::string record;       // file of this run: read at its start, written by save(); empty: none
    bool shipped = false;     // look in the program's tables
    std::string store;        // file shared with other runs; empty: none
    bool measures = true;     // false: choices follow from a rule, and neither tables nor the store are used
    double seconds = kShort;  // how long each of the best few candidates is measured; at 4 ms a GPU still bursts,
                              // and what it sustains at its power limit shows after some 0.3 s
  };
  // Throws Error if the record or the store is damaged.
  explicit Tuning(Sources sources);
  // ChoiceMap in memory alone, or beside them the file `record`.
  explicit Tuning(std::string record) : Tuning(Sources{.record = std::move(record)}) {}

  // False if a missing choice is to be the first candidate.
  bool measures() const { return sources_.measures; }
  double seconds() const { return sources_.seconds; }

  // Returns the choice for a key, which is then in this run's record; nullopt if it is to be made.
  std::optional<std::string> find(const std::string& key);
  // Records a choice and returns the one that holds: if another run stored its choice meanwhile, that one. `rejected`:
  // a choice that find() returned and that does not run here.
  std::string record(const std::string& key, const std::string& choice,
                     const std::optional<std::string>& rejected = std::nullopt);
  // Writes the record, if is_changed(). Throws Error if it cannot be written; the file is then as it was.
  void save();
  // True if the record has choices that are not in its file.
  bool is_changed() const;
  // The record as text, for other processes of the run.
  std::string text() const;
  // Takes over the record of another process, which replaces choices of the same key here. Returns how many it
  // replaced.
  std::size_t adopt(const std::string& text);
  // Changes whenever choices were replaced: those that a cache took from here must then be looked up again.
  std::uint64_t generation() const { return generation_; }

 private:
  const Sources sources_;
  std::unique_ptr<ChoiceStore> store_;  // null: none
  ChoiceMap recorded_;
  std::atomic<std::uint64_t> generation_{1};
  bool changed_ = false;
  mutable std::mutex mutex_;
};

}  // namespace ring
