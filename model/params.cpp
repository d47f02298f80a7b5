#include "model/params.h"

#include <algorithm>

#include "core/cpu/thread_pool.h"
#include "core/philox.h"

namespace ring {
namespace {

// Parameters start on multiples of 16 elements: a cache line, and the alignment that vector kernels like.
constexpr std::int64_t kAlign = 16;

std::int64_t aligned(std::int64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

void initialise(const Tensor& value, const LogicalParam& part, std::uint64_t seed, const Context& ctx) {
  std::vector<float> host(static_cast<std::size_t>(value.numel()));
  const RandomSite site{seed, 0, site_of(part.name)};
  const auto fill = [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i)
      host[static_cast<std::size_t>(i)] = part.init.std * random_normal(site, static_cast<std::uint64_t>(i));
  };
  switch (part.init.kind) {
    case Init::Kind::zeros: break;
    case Init::Kind::ones: std::fill(host.begin(), host.end(), 1.0f); break;
    case Init::Kind::normal:
      if (ctx.stream.device().backend == Backend::cpu)
        ctx.stream.pool().parallel_for(value.numel(), 1024, fill);
      else
        fill(0, value.numel(), 0);
  }
  ctx.stream.impl().copy(value.raw(), host.data(), value.bytes());
  if (ctx.stream.device().backend != Backend::cpu) ctx.stream.synchronize();  // host waits: start
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

void Parameters::allocate(const Context& ctx, std::uint64_t seed) {
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
  values = ctx.zeros({size});
  gradients = ctx.zeros({size});
  for (Param* p : layout_) {
    p->var.value = values.narrow(0, p->offset, p->shape.numel()).view(p->shape);
    p->var.slot->grad = gradients.narrow(0, p->offset, p->shape.numel()).view(p->shape);
    p->var.slot->bound = true;
    for (const LogicalParam& part : p->parts) initialise(p->part_of(values, part), part, seed, ctx);
  }
}

void Parameters::start_step() {
  for (Param* p : layout_) p->var.slot->written = false;
}

std::vector<Param*> Parameters::below(const std::string& prefix) {
  std::vector<Param*> out;
  for (Param& p : params_)
    if (p.parts.front().name.starts_with(prefix)) out.push_back(&p);
  return out;
}

std::int64_t Parameters::count() const {
  std::int64_t n = 0;
  for (const Param& p : params_)
    for (const LogicalParam& part : p.parts) n += part.rows * (p.shape.size() == 2 ? p.shape[1] : 1);
  return n;
}

}  // namespace ring
