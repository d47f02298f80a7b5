#include <limits>

#include "autograd/ops.h"

namespace ring {

Sequences Sequences::uniform(std::int64_t batch, std::int64_t length, const Context& ctx, std::int64_t first_position) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  RING_CHECK(batch >= 0 && length >= 0 && first_position >= 0, "sequences: batch ", batch, ", length ", length,
             ", first position ", first_position, ": none may be negative");
  RING_CHECK(length == 0 || (batch <= most / length && first_position <= most - length), "sequences: batch ", batch,
             " x length ", length, " from position ", first_position, " does not fit into 32 bits");
  Sequences s;
  std::vector<std::int32_t> positions;
  positions.reserve(static_cast<std::size_t>(batch * length));
  for (std::int64_t b = 0; b <= batch; ++b) s.offsets.push_back(static_cast<std::int32_t>(b * length));
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t t = 0; t < length; ++t) positions.push_back(static_cast<std::int32_t>(first_position + t));
  s.positions = ctx.empty({batch * length}, DType::i32);
  if (!positions.empty()) ctx.stream.impl().copy(s.positions.raw(), positions.data(), s.positions.bytes());
  return s;
}

}  // namespace ring
