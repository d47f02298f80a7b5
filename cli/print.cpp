#include "cli/print.h"

#include <cstdarg>
#include <cstdio>
#include <iostream>
#include <string>

#include "core/check.h"

namespace ring {

void print_format(const char* format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  const int size = std::vsnprintf(nullptr, 0, format, arguments);
  va_end(arguments);
  RING_CHECK(size >= 0, "invalid print format: ", format);
  std::string text(static_cast<std::size_t>(size) + 1, '\0');
  std::vsnprintf(text.data(), text.size(), format, again);
  va_end(again);
  text.pop_back();
  std::cout << text;
}

}  // namespace ring
