#include "model/params.h"

#include <algorithm>

#include "core/philox.h"
#include "kernels/elementwise.h"

namespace ring {
namespace {

// Parameters start on multiples of 16 elements: a cache line, and the alignment that vector kernels like.
constexpr std::int64_t kAlign = 16;

std::int64_t aligned(std::int64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

void initialise(const Tensor& value, const LogicalParam& part, std::uint64_t seed, const Context& ctx) {
  const RandomSite site{seed, 0, site_of(part.name)};
  switch (part.init.kind) {
    case Init::Kind::zeros: return;
    case Init::Kind::ones: {
      const Tensor ones = from_host(std::vector<float>(static_cast<std::size_t>(value.numel()), 1.0f), ctx.stream);
      return cast_kernel({ones, value.view({value.numel()})}, ctx);
    }
    case Init::Kind::normal: return random_normal_kernel({value.view({value.numel()}), site, part.init.std}, ctx);
  }
}

}  // namespace

Tensor Param::part_of(const Tensor& flat, const LogicalParam& part) const {
  const std::int64_t columns = shape.size() == 2 ? shape[1] : 1;
  const Tensor rows = flat.narrow(0, offset + part.first_row * columns, part.rows * columns);
  return shape.size() == 2 ? rows.view({part.rows, columns}) : rows;
}

Param& Parameters::add(std::vector<LogicalParam> parts, std::int64_t columns, std::int64_t padded_rows) {
  std::int64_t rows = 0;
  for (LogicalParam& part : parts) {
    for (const Param& p : params_)
      for (const LogicalParam& other : p.parts)
        RING_CHECK(other.name != part.name, "parameter ", part.name, " added twice");
    part.first_row = rows;
    rows += part.rows;
  }
  rows = std::max(rows, padded_rows);
  Param& p = params_.emplace_back();
  p.parts = std::move(parts);
  p.shape = columns ? Shape{rows, columns} : Shape{rows};
  p.decay = columns != 0;
  p.var.slot = std::make_shared<GradSlot>();
  return p;
}

void Parameters::allocate(const Context& ctx, std::uint64_t seed, const ParamTypes& types) {
  std::int64_t size = 0;
  for (const bool decay : {false, true}) {
    if (decay) matrices_begin_ = size;
    for (Param& p : params_) {
      if (p.decay != decay) continue;
      p.offset = size;
      size += aligned(p.shape.numel());
      layout_.push_back(&p);
    }
  }
  values = ctx.zeros({size}, types.master);
  weights = types.weights == types.master ? values : ctx.zeros({size}, types.weights);
  if (types.trainable) gradients = ctx.zeros({size}, types.gradients);
  for (Param* p : layout_) {
    const auto view = [p](const Tensor& flat) { return flat.narrow(0, p->offset, p->shape.numel()).view(p->shape); };
    p->var.value = view(weights);
    p->var.slot->bound = true;
    if (types.trainable) p->var.slot->grad = view(gradients);
    for (const LogicalParam& part : p->parts) initialise(p->part_of(values, part), part, seed, ctx);
  }
  refresh_weights(ctx);
}

void Parameters::refresh_weights(const Context& ctx) const {
  if (weights.raw() != values.raw()) cast_kernel({values, weights}, ctx);
}

void Parameters::start_step() {
  for (Param* p : layout_) p->var.slot->written = false;
}

std::int64_t Parameters::count() const {
  std::int64_t n = 0;
  for (const Param& p : params_)
    for (const LogicalParam& part : p.parts) n += part.rows * (p.shape.size() == 2 ? p.shape[1] : 1);
  return n;
}

}  // namespace ring
