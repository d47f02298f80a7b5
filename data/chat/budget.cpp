#include "data/chat/budget.h"

#include "core/check.h"

namespace ring::chat {

void check_bytes(std::size_t bytes, std::size_t max) {
  if (bytes > max) fail("a text, a list or an object, with all that is in it, is larger than ", max, " bytes");
}

void Budget::spend(std::size_t steps) {
  steps_ += steps;
  if (steps_ > limits_.steps) fail("it takes more than ", limits_.steps, " steps");
}

void Budget::read(std::size_t bytes) {
  bytes_ += bytes;
  spend(bytes_ / kStepBytes);
  bytes_ %= kStepBytes;
}

void Budget::make(std::size_t bytes) {
  made_ += bytes;
  if (made_ / kMaxMade > limits_.bytes)
    fail("it makes texts, lists and objects of more than ", kMaxMade * limits_.bytes, " bytes in all");
  read(bytes);
}

void Budget::append(std::string& text, std::string_view more) {
  check(text.size() + more.size());
  make(more.size());
  text += more;
}

}  // namespace ring::chat
