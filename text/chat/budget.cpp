#include "text/chat/budget.h"

#include "core/check.h"

namespace ring::chat {

void check_bytes(std::size_t bytes, std::size_t max) {
  if (bytes > max) fail("a value (a string, or a list or object including its contents) exceeds ", max, " bytes");
}

void Budget::charge_steps(std::size_t steps) {
  steps_ += steps;
  if (steps_ > limits_.steps) fail("the template exceeds ", limits_.steps, " steps");
}

void Budget::charge_read(std::size_t bytes) {
  bytes_ += bytes;
  charge_steps(bytes_ / kStepBytes);
  bytes_ %= kStepBytes;
}

void Budget::charge_created(std::size_t bytes) {
  created_ += bytes;
  if (created_ / kMaxCreated > limits_.bytes)
    fail("the template creates more than ", kMaxCreated * limits_.bytes, " bytes of strings, lists and objects");
  charge_read(bytes);
}

void Budget::append(std::string& text, std::string_view more) {
  check(text.size() + more.size());
  charge_created(more.size());
  text += more;
}

}  // namespace ring::chat
