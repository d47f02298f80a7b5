#include "parallel/ordered_sum.h"

#include <algorithm>

#include "kernels/elementwise.h"

namespace ring {
namespace {

constexpr std::int64_t kAtOnce = std::int64_t{4} << 20;  // elements gathered from each rank at a time

Tensor in_type(const Tensor& t, DType type, const ExecContext& ctx) {
  if (t.dtype() == type) return t;
  const Tensor out = ctx.empty(t.shape(), type);
  cast_kernel({t, out}, ctx);
  return out;
}

class Gathered {
 public:
  Gathered(const Tensor& part, Communicator& group, const ExecContext& ctx)
      : part_(part),
        all_(ctx.empty({group.size(), part.numel()}, part.dtype())),
        work_(group.all_gather(all_, part, ctx.stream.record())) {}

  void add(const ExecContext& ctx) {
    work_.wait(ctx.stream);
    const Tensor all = in_type(all_, DType::f32, ctx);
    const auto of = [&](std::int64_t rank) { return all.narrow(0, rank, 1).view({part_.numel()}); };
    for (std::int64_t rank = 1; rank < all.dim(0); ++rank) axpby_kernel({of(0), of(rank), of(0), 1, 1}, ctx);
    const Tensor sum = in_type(of(0), part_.dtype(), ctx);
    ctx.stream.impl().copy(part_.raw(), sum.raw(), part_.bytes());
  }

 private:
  Tensor part_, all_;
  Work work_;
};

}  // namespace

void sum_in_order(const std::vector<Tensor>& tensors, Communicator& group, const ExecContext& ctx) {
  if (group.size() == 1) return;
  std::vector<Gathered> gathered;
  std::int64_t elements = 0;
  const auto add = [&] {
    for (Gathered& g : gathered) g.add(ctx);
    gathered.clear();
    elements = 0;
  };
  for (const Tensor& t : tensors)
    for (std::int64_t begin = 0; begin < t.numel(); begin += kAtOnce) {
      const std::int64_t count = std::min(kAtOnce, t.numel() - begin);
      if (elements + count > kAtOnce) add();
      gathered.emplace_back(t.view({t.numel()}).narrow(0, begin, count), group, ctx);
      elements += count;
    }
  add();
}

}  // namespace ring
