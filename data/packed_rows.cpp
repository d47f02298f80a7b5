#include "data/packed_rows.h"

#include "core/check.h"

namespace ring {

std::uint64_t documents_longer_than(const TokenSplit& split, std::int64_t context) {
  DocumentStarts starts(split);
  std::uint64_t longer = 0;
  for (std::uint64_t d = 0; d < split.documents(); ++d)
    longer += starts(d + 1) - starts(d) > static_cast<std::uint64_t>(context);
  return longer;
}

PackedRows::PackedRows(const TokenSplit& split, std::int64_t context, std::int64_t align)
    : split_(split), context_(context), align_(align) {
  RING_CHECK(context > 0 && align > 0, "rows of ", context, " tokens with documents at multiples of ", align);
}

double PackedRows::filled_share() const {
  if (rows_ == 0) return 1;
  return static_cast<double>(split_.tokens()) / (static_cast<double>(rows_) * static_cast<double>(context_));
}

}  // namespace ring
