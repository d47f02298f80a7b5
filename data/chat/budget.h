#pragma once
// The cost of evaluating a chat template. Every operation is charged before it does its work: by the size of what it
// reads, and by the size of what it makes.

#include <cstddef>
#include <string>
#include <string_view>

namespace ring::chat {

// Bytes of one value: of a text, or of a list or object with everything in it.
inline constexpr std::size_t kMaxBytes = std::size_t{1} << 28;
inline constexpr std::size_t kValueBytes = 64;  // of a value by itself
// Throws Error if a value has more than `max` bytes.
void check_bytes(std::size_t bytes, std::size_t max = kMaxBytes);

struct Limits {
  std::size_t steps = std::size_t{1} << 26;  // of evaluation
  std::size_t bytes = kMaxBytes;             // of the output and of each value; all values that are made: 4 times that
};

// Each charge throws Error if it exceeds a limit.
class Budget {
 public:
  static constexpr std::size_t kStepBytes = 64;  // that a step reads or makes
  static constexpr std::size_t kMaxMade = 4;     // times Limits::bytes

  // spent: steps that were charged before, by what shares the limit.
  explicit Budget(const Limits& limits, std::size_t spent = 0) : limits_(limits), steps_(spent) {}
  std::size_t steps() const { return steps_; }  // charged so far, with `spent`

  void spend(std::size_t steps);
  void read(std::size_t bytes);
  void make(std::size_t bytes);
  // A search through `names` names for one of `length` bytes.
  void find_name(std::size_t names, std::size_t length) { read(names * (8 + length) / 4); }
  // Throws Error if a value of so many bytes is too large.
  void check(std::size_t bytes) const { check_bytes(bytes, limits_.bytes); }
  // Makes `text` longer.
  void append(std::string& text, std::string_view more);

 private:
  Limits limits_;
  std::size_t steps_;
  std::size_t bytes_ = 0;  // not charged yet, less than kStepBytes
  std::size_t made_ = 0;
};

}  // namespace ring::chat
