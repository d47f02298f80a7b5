#pragma once
// Limits the cost of evaluating a chat template. Every operation is charged before it runs, for the bytes that it reads
// and the bytes that it creates.

#include <cstddef>
#include <string>
#include <string_view>

namespace ring::chat {

// Maximum bytes of one value: a string, or a list or object with its contents.
inline constexpr std::size_t kMaxBytes = std::size_t{1} << 28;
inline constexpr std::size_t kValueBytes = 64;  // bytes counted for any value, in addition to its contents
// Throws Error if a value has more than `max` bytes.
void check_bytes(std::size_t bytes, std::size_t max = kMaxBytes);

struct Limits {
  std::size_t steps = std::size_t{1} << 26;  // maximum steps of one evaluation
  // Maximum bytes of the output and of each value; all created values together may have 4 times as many.
  std::size_t bytes = kMaxBytes;
};

// Counts steps and bytes. Each charge throws Error if a limit is exceeded.
class Budget {
 public:
  static constexpr std::size_t kStepBytes = 64;  // number of bytes that one step reads or creates
  // Maximum size of all created values together, in units of Limits::bytes.
  static constexpr std::size_t kMaxCreated = 4;

  // spent: steps already charged by other evaluations under the same limit.
  explicit Budget(const Limits& limits, std::size_t spent = 0) : limits_(limits), steps_(spent) {}
  std::size_t steps() const { return steps_; }  // number of steps charged so far, including `spent`

  void charge_steps(std::size_t steps);
  void charge_read(std::size_t bytes);
  void charge_created(std::size_t bytes);
  // Charges a linear search for a name of `length` bytes among `names` names. Charges a quarter of the bytes, since
  // most names differ in their first bytes.
  void charge_name_lookup(std::size_t names, std::size_t length) { charge_read(names * (8 + length) / 4); }
  // Throws Error if a value of `bytes` bytes is too large.
  void check(std::size_t bytes) const { check_bytes(bytes, limits_.bytes); }
  // Charges for `more` and appends it to `text`.
  void append(std::string& text, std::string_view more);

 private:
  Limits limits_;
  std::size_t steps_;
  std::size_t bytes_ = 0;  // charged bytes that do not make up a whole step yet; less than kStepBytes
  std::size_t created_ = 0;
};

}  // namespace ring::chat
