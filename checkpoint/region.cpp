#include "checkpoint/region.h"

namespace ring {
namespace {

std::int64_t offset_in(const Region& region, const Shape& point) {
  std::int64_t offset = 0;
  for (int i = 0; i < point.size(); ++i) offset = offset * region.size[i] + (point[i] - region.start[i]);
  return offset;
}

}  // namespace

void for_each_run(const Region& source, const Region& target,
                  const std::function<void(std::int64_t, std::int64_t, std::int64_t)>& run) {
  const Region both = intersect(source, target);
  if (both.numel() == 0) return;
  // Dims from `inner` on form one contiguous run in both regions: all of these dims, except the outermost, are whole.
  int inner = both.size.size();
  std::int64_t count = 1;
  while (inner > 0) {
    --inner;
    count *= both.size[inner];
    if (both.size[inner] != source.size[inner] || both.size[inner] != target.size[inner]) break;
  }
  Shape point = both.start;
  for (;;) {
    run(offset_in(source, point), offset_in(target, point), count);
    int i = inner - 1;
    for (; i >= 0; --i) {
      if (++point[i] < both.start[i] + both.size[i]) break;
      point[i] = both.start[i];
    }
    if (i < 0) return;
  }
}

}  // namespace ring
