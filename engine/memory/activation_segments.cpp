#include "engine/memory/activation_segments.h"

#include <algorithm>
#include <span>

namespace ring {
namespace {

using Blocks = std::span<const std::vector<PartOption>>;

// Returns the bytes of a block's output, which is all that a block saves with the option that saves least.
std::size_t output_of(const std::vector<PartOption>& block) {
  return std::ranges::min(block, {}, &PartOption::kept).kept;
}

// Returns a segment as a single part, all of whose blocks use this option. `output` counts in both passes: in the
// forward as the input that one block passes to the next, in the backward as the gradient of the segment's output.
PartOption segment_option(Blocks blocks, std::size_t option) {
  const std::size_t output = output_of(blocks.back());
  PartOption all{.kept = output};
  std::size_t kept = output;
  for (const std::vector<PartOption>& block : blocks) {
    const PartOption& o = block[option];
    const std::size_t unrecorded = std::ranges::min(block, {}, &PartOption::forward_peak).forward_peak;
    all.forward_peak = std::max(all.forward_peak, output + unrecorded);
    all.backward_peak = std::max(all.backward_peak, kept + o.peak());
    all.nanoseconds += o.nanoseconds + block.front().forward;
    all.forward += block.front().forward;
    all.backward += o.forward + o.backward;
    kept += o.kept;
  }
  return all;
}

}  // namespace

PartOptions in_segments(const PartOptions& parts, Segments s, std::size_t first, std::size_t options) {
  const auto at = [&](std::size_t part) { return parts.begin() + static_cast<std::ptrdiff_t>(part); };
  PartOptions all(at(0), at(first));
  for (std::size_t i = 0; i < s.count; ++i) {
    std::vector<PartOption>& segment = all.emplace_back();
    for (std::size_t option = 0; option < options; ++option)
      segment.push_back(segment_option(Blocks(parts).subspan(first + i * s.blocks, s.blocks), option));
  }
  all.insert(all.end(), at(first + s.count * s.blocks), parts.end());
  return all;
}

std::vector<Segments> segments_of(std::size_t blocks) {
  std::vector<Segments> all;
  for (const std::size_t length : {2, 3, 4, 6, 8})
    for (std::size_t count = 1; count * length < blocks; ++count) all.push_back({count, length});
  return all;
}

}  // namespace ring
