#include "core/ranges.h"

#include <optional>

namespace ring {
namespace {

std::optional<RangeMarks>& marks() {
  static std::optional<RangeMarks> m;
  return m;
}

}  // namespace

bool register_range_marks(const RangeMarks& m) {
  marks() = m;
  return true;
}

const RangeMarks* range_marks() { return marks() ? &*marks() : nullptr; }

}  // namespace ring
