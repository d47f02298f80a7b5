#pragma once
// Measured choices (matrix-product algorithms, kernel candidates), by key, in a YAML file of text to text. A key names
// everything that the choice depends on, the device and the library's version included. What a file holds is used as it
// is, so that a run gives the same bits when it is resumed; what is missing is measured and added.

#include <atomic>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace ring {

// What a GPU computes in a second, roughly: enough to tell what takes too long to be tried.
inline constexpr double kRoughGpuFlops = 4e14;

class Tuning {
 public:
  // Reads the file where it exists. An empty path: nothing is read or written. Error: not such a file.
  // `seconds`: how long each of the best few candidates is measured. A millisecond shows a burst; what a device
  // sustains at its power limit takes a good part of a second.
  explicit Tuning(std::string path, double seconds = kShort);
  double seconds() const { return seconds_; }
  static constexpr double kShort = 4e-3;

  std::optional<std::string> find(const std::string& key) const;
  void record(const std::string& key, const std::string& choice);
  // Writes the file, through a temporary one, if anything was recorded since. Error: it cannot be written.
  void save();
  // All entries, for other processes of the run; and theirs, which replace those of the same key here.
  std::string text() const;
  std::size_t adopt(const std::string& text);  // how many of these it replaced
  // Changes whenever entries were replaced: choices that a cache took from here must then be looked up again.
  std::uint64_t generation() const { return generation_; }

 private:
  std::string path_;
  double seconds_;
  void read(std::istream&, const std::string& name);

  std::map<std::string, std::string> entries_;
  std::atomic<std::uint64_t> generation_{1};
  bool changed_ = false;
  mutable std::mutex mutex_;
};

}  // namespace ring
