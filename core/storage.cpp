#include "core/storage.h"

#include <cstdio>

namespace ring {

std::string bytes_text(std::size_t bytes) {
  constexpr double kMiB = 1 << 20, kGiB = 1 << 30;
  const auto n = static_cast<double>(bytes);
  if (n < kMiB) return str(bytes, " bytes");
  char text[32];
  if (n < kGiB)
    std::snprintf(text, sizeof text, "%.1f MiB", n / kMiB);
  else
    std::snprintf(text, sizeof text, "%.2f GiB", n / kGiB);
  return text;
}

}  // namespace ring
