#include "model/params.h"

#include <algorithm>

#include "core/host_tensor.h"
#include "core/philox.h"
#include "kernels/elementwise.h"

namespace ring {
namespace {

// Fills `value` with the initial elements of the whole parameter, flattened, from `first` on.
void initialise_range(const Tensor& value, const LogicalParam& part, std::int64_t first, std::uint64_t seed,
                      const ExecContext& ctx) {
  const RandomSite site{seed, 0, site_of(part.name)};
  switch (part.init.kind) {
    case Init::Kind::zeros: return fill_zero(value, ctx.stream);
    case Init::Kind::ones: {
      const Tensor ones = from_host(std::vector<float>(static_cast<std::size_t>(value.numel()), 1.0f), ctx.stream);
      return cast_kernel({ones, value}, ctx);
    }
    case Init::Kind::uniform: {
      std::vector<float> values;
      for (std::int64_t i = first; i < first + value.numel(); ++i)
        values.push_back(part.init.low + (part.init.high - part.init.low) *
                                             to_uniform(random_bits(site, static_cast<std::uint64_t>(i))));
      return cast_kernel({from_host(values, ctx.stream), value}, ctx);
    }
    case Init::Kind::normal: return random_normal_kernel({value, site, part.init.std, first}, ctx);
  }
}

}  // namespace

// Whole rows are a contiguous range of the whole parameter. For a shard of the columns, whole rows are generated first,
// then copied.
void initialise(const Tensor& value, const LogicalParam& part, std::int64_t first, std::uint64_t seed,
                const ExecContext& ctx) {
  if (value.numel() == 0) return;
  if (value.device() != ctx.stream.device()) {
    const Tensor here = ctx.empty(value.shape(), value.dtype(), Lifetime::run);
    initialise(here, part, first, seed, ctx);
    return copy(value, here, ctx.stream);
  }
  const bool matrix = part.whole.size() == 2;
  const std::int64_t whole_columns = matrix ? part.whole[1] : 1, columns = matrix ? value.dim(1) : 1;
  const std::int64_t begin = (part.start[0] + first) * whole_columns, even = begin / 2 * 2;
  if (columns == whole_columns && begin == even)
    return initialise_range(value.view({value.numel()}), part, begin, seed, ctx);
  const Tensor whole = ctx.empty({begin - even + value.dim(0) * whole_columns}, value.dtype());
  initialise_range(whole, part, even, seed, ctx);
  const std::int64_t at = begin - even + (matrix ? part.start[1] : 0);
  const std::size_t element = size_of(value.dtype());
  ctx.stream.impl().copy_rows(value.raw(), static_cast<std::size_t>(columns) * element,
                              whole.raw() + static_cast<std::size_t>(at) * element,
                              static_cast<std::size_t>(whole_columns) * element,
                              static_cast<std::size_t>(columns) * element, static_cast<std::size_t>(value.dim(0)));
}

Tensor make_master(std::int64_t size, const ParamTypes& types, const ExecContext& ctx) {
  const HostParams at_least = types.separate_master() ? HostParams::master : HostParams::weights;
  return types.on_host >= at_least ? host_tensor({size}, types.master, ctx.stream)
                                   : ctx.zeros({size}, types.master, Lifetime::run);
}

Tensor make_weights(std::int64_t size, const ParamTypes& types, const ExecContext& ctx) {
  return types.on_host == HostParams::weights ? host_tensor({size}, types.weights, ctx.stream)
                                              : ctx.zeros({size}, types.weights, Lifetime::run);
}

Tensor make_exact_values(std::int64_t size, const ParamTypes& types, const ExecContext& ctx) {
  return size ? host_tensor({size}, types.master, ctx.stream) : Tensor();
}

void copy_values_to_weights(const Tensor& values, const Tensor& weights, const ExecContext& ctx) {
  const auto is_here = [&](const Tensor& t) { return t.device() == ctx.stream.device(); };
  if (is_here(values) && is_here(weights)) return cast_kernel({values, weights}, ctx);
  constexpr std::int64_t max = 1 << 24;  // elements staged on the device at a time
  for (std::int64_t at = 0; at < values.numel(); at += max) {
    const std::int64_t n = std::min(max, values.numel() - at);
    const auto staged = [&](const Tensor& all) {
      const Tensor part = all.narrow(0, at, n);
      return is_here(part) ? part : ctx.empty({n}, part.dtype(), Lifetime::run);
    };
    const Tensor from = staged(values), to = staged(weights);
    if (!is_here(values)) copy(from, values.narrow(0, at, n), ctx.stream);
    cast_kernel({from, to}, ctx);
    if (!is_here(weights)) copy(weights.narrow(0, at, n), to, ctx.stream);
  }
}

bool Param::is_frozen() const {
  return !parts.empty() && std::ranges::all_of(parts, [](const LogicalParam& part) { return part.frozen; });
}

Tensor Param::part_of(const Tensor& flat, const LogicalParam& part) const {
  const std::int64_t columns = shape.size() == 2 ? shape[1] : 1;
  const Tensor rows = flat.narrow(0, offset + part.first_row * columns, part.rows * columns);
  return shape.size() == 2 ? rows.view({part.rows, columns}) : rows;
}

namespace {

std::int64_t rounded_up(std::int64_t n, std::int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Returns the rows of the whole parameter in memory, including padding.
std::int64_t padded_rows(const Param& p, std::int64_t rows, int slices) {
  const auto& [cut, multiple] = p.placement;
  return multiple ? rounded_up(rows, multiple * (cut == Cut::outputs ? slices : 1)) : rows;
}

}  // namespace

Param& Parameters::add(std::vector<LogicalParam> parts, std::int64_t columns, const Placement& placement) {
  for (LogicalParam& part : parts) {
    RING_CHECK(names_.insert(part.name).second, "parameter ", part.name, " added twice");
    part.whole = columns ? Shape{part.rows, columns} : Shape{part.rows};
  }
  Param& p = params_.emplace_back();
  p.parts = std::move(parts);
  p.placement = placement;
  p.decay = columns != 0;
  p.var.slot = std::make_shared<GradSlot>();
  p.var.parameter = true;
  take_slice(p);
  return p;
}

void Parameters::shard(Slice slice) {
  RING_CHECK(layout_.empty(), "parameters are sharded after they were placed in memory");
  slice_ = slice;
  for (Param& p : params_) take_slice(p);
}

void Parameters::take_slice(Param& p) const {
  std::int64_t rows = 0, all_rows = 0;
  for (std::size_t i = 0; i < p.parts.size(); ++i) {
    LogicalParam& part = p.parts[i];
    take_slice(part, i, p);
    part.first_row = rows;
    rows += part.rows;
    all_rows += part.whole[0];
  }
  const Cut cut = p.placement.cut;
  if (p.placement.row_multiple) rows = padded_rows(p, all_rows, slice_.size) / (cut == Cut::outputs ? slice_.size : 1);
  const Shape& whole = p.parts[0].whole;
  if (whole.size() == 1)
    p.shape = {rows};
  else
    p.shape = {rows, cut == Cut::inputs ? whole[1] / slice_.size : whole[1]};
}

void Parameters::take_slice(LogicalParam& part, std::size_t index, const Param& p) const {
  part.rows = part.whole[0];
  part.start = part.whole.size() == 2 ? Shape{0, 0} : Shape{0};
  const auto share = [&](std::int64_t n, const char* what) {
    RING_CHECK(n % slice_.size == 0, "parameter ", part.name, ": ", n, " ", what, " do not divide among ", slice_.size,
               " slices");
    return n / slice_.size;
  };
  switch (p.placement.cut) {
    case Cut::none: return;
    case Cut::outputs: {
      const std::int64_t block = share(padded_rows(p, part.rows, slice_.size), "rows"), first = slice_.rank * block;
      part.start[0] = std::min(first, part.rows);
      part.rows = std::clamp(part.rows - first, std::int64_t{0}, block);
      return;
    }
    case Cut::inputs: part.start[1] = slice_.rank * share(part.whole[1], "columns"); return;
    case Cut::parts:
      if (static_cast<std::int64_t>(index) / share(static_cast<std::int64_t>(p.parts.size()), "parts") != slice_.rank)
        part.rows = 0;
      return;
  }
}

std::vector<Param*> Parameters::declared() {
  std::vector<Param*> all;
  for (Param& p : params_) all.push_back(&p);
  return all;
}

std::vector<Param*> Parameters::whole_layout() const {
  std::vector<Param*> all = layout_;
  all.insert(all.end(), absent_.begin(), absent_.end());
  return all;
}

void Parameters::freeze(Param& p) {
  RING_CHECK(layout_.empty(), "parameter ", p.parts[0].name, " is frozen after it was placed in memory");
  for (LogicalParam& part : p.parts) part.frozen = true;
  p.var.slot = nullptr;
}

void Parameters::lay_out() {
  layout_.clear();
  absent_.clear();
  size_ = 0;
  for (Param& p : params_)
    if (!p.held) absent_.push_back(&p);
  enum class Group : std::uint8_t { trained, frozen, encoded };
  const auto group_of = [](const Param& p) {
    return p.encoded ? Group::encoded : p.is_frozen() ? Group::frozen : Group::trained;
  };
  const auto place = [&](Group group, bool decay, bool cut) {
    for (Param& p : params_) {
      if (!p.held || group_of(p) != group || p.decay != decay || is_cut(p) != cut) continue;
      p.offset = size_;
      size_ += param_aligned(p.shape.numel());
      layout_.push_back(&p);
    }
  };
  for (const Group group : {Group::trained, Group::frozen, Group::encoded}) {
    if (group == Group::frozen) trained_size_ = size_;
    if (group == Group::encoded) encoded_begin_ = size_;
    for (const bool decay : {false, true}) {
      if (decay && group == Group::trained) matrices_begin_ = size_;
      for (const bool cut : {false, true}) place(group, decay, cut);
    }
  }
}

void Parameters::allocate(const ExecContext& ctx, std::uint64_t seed, const ParamTypes& types) {
  lay_out();
  values = make_master(encoded_begin_, types, ctx);
  exact_values = make_exact_values(size_ - encoded_begin_, types, ctx);
  weights = types.separate_master() ? make_weights(encoded_begin_, types, ctx) : values;
  if (types.trainable) gradients = ctx.zeros({trained_size_}, types.gradients, Lifetime::run);
  for (Param* p : layout_) {
    const auto view = [p](const Tensor& flat, std::int64_t begin = 0) {
      return flat.narrow(0, p->offset - begin, p->shape.numel()).view(p->shape);
    };
    if (!p->encoded) p->var.value = view(weights);
    if (p->var.slot) p->var.slot->bound = true;
    if (p->var.slot && types.trainable) p->var.slot->grad = view(gradients);
    const Tensor all = p->encoded ? view(exact_values, encoded_begin_) : view(values);
    for (const LogicalParam& part : p->parts) initialise(all.narrow(0, part.first_row, part.rows), part, 0, seed, ctx);
  }
  refresh_weights(ctx);
}

void Parameters::refresh_weights(const ExecContext& ctx) const {
  if (weights.raw() != values.raw()) copy_values_to_weights(values, weights, ctx);
}

void Parameters::start_step() {
  for (Param* p : layout_)
    if (p->var.slot) p->var.slot->written = false;
}

std::int64_t Parameters::num_elements() const {
  std::int64_t n = 0;
  for (const Param& p : params_)
    for (const LogicalParam& part : p.parts) n += part.whole.numel();
  return n;
}

}  // namespace ring
