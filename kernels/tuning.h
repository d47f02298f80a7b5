#pragma once
// Choices among implementations that differ in speed and in rounding: GEMM algorithms, attention kernels, schedules of
// context parallelism. A choice depends on the device model, the versions of the libraries, this program and the shape.
// A run looks for each choice in its own record, then in the tables compiled into the program, then in a store shared
// with other runs. It measures only if none of them has the choice. Equal settings thus give bit-identical results.

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

// Approximate FLOP/s of a GPU, for estimating in advance which candidates would take too long to measure.
inline constexpr double kRoughGpuFlops = 4e14;

class Tuning {
 public:
  static constexpr double kShortSeconds = 4e-3;

  struct Sources {
    std::string record;    // file of this run: read at its start, written by save_if_changed(); "" for none
    bool shipped = false;  // if true, look in the program's tables (shipped_choices.h)
    std::string store;     // file shared with other runs; "" for none
    bool measures = true;  // if false, choices follow a fixed rule, and tables and store are not used
    // Seconds for which each of the few best candidates is measured. During its first 4 ms a GPU runs faster than it
    // can sustain; its speed at the power limit shows after about 0.3 s.
    double seconds = kShortSeconds;
  };
  // Throws Error if the record or the store is damaged.
  explicit Tuning(Sources sources);
  // Keeps choices in memory and, if `record` is not "", in that file.
  explicit Tuning(std::string record) : Tuning(Sources{.record = std::move(record)}) {}

  // Returns false if callers must not measure: if a choice is missing, they take the first candidate.
  bool measures() const { return sources_.measures; }
  double seconds() const { return sources_.seconds; }

  // Returns true if this run has used a choice for the key, or its record holds one.
  bool has_recorded(const std::string& key) const;
  // Returns the choice for a key and adds it to this run's record; nullopt if the caller has to make the choice.
  std::optional<std::string> find(const std::string& key);
  // Records a choice and returns the choice to use, which differs from `choice` if another run has stored its own
  // meanwhile. `rejected`: a choice that find() returned but that does not run here; it is replaced.
  std::string record(const std::string& key, const std::string& choice,
                     const std::optional<std::string>& rejected = std::nullopt);
  // Writes the record if is_changed(). Throws Error if the file cannot be written; it then keeps its old contents.
  void save_if_changed();
  // Returns true if the record has a file, and the file lacks some of the record's choices.
  bool is_changed() const;
  // Returns the record as text, for other processes of the run.
  std::string text() const;
  // Adds the record of another process. Its choices replace choices with the same key. Returns how many were replaced.
  std::size_t merge_record(const std::string& text);
  // Returns a number that changes whenever merge_record() replaces choices. Code that caches choices
  // must then look them up again.
  std::uint64_t generation() const { return generation_; }

 private:
  const Sources sources_;
  std::unique_ptr<ChoiceStore> store_;  // may be null
  ChoiceMap recorded_;
  std::atomic<std::uint64_t> generation_{1};
  bool changed_ = false;
  mutable std::mutex mutex_;
};

}  // namespace ring
