#include "tests/op_case.h"

#include <algorithm>

#include "core/philox.h"

namespace ring::test {

Values random_values(const std::string& name, std::int64_t n, double scale) {
  const RandomSite site{.seed = 20240229, .step = 0, .site = site_of(name)};
  Values v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); i += 4) {
    const Philox4 block = random_block(site, i / 4);
    for (std::size_t j = i; j < std::min(i + 4, v.size()); ++j) v[j] = (2.0 * to_uniform(block.v[j - i]) - 1.0) * scale;
  }
  return v;
}

std::vector<Values> input_values(const OpCase& c) {
  std::vector<Values> all;
  for (const Input& in : c.inputs) {
    Values v = in.values;
    if (v.empty()) v = random_values(c.op + "/" + c.name + "/" + in.name, in.shape.numel(), in.scale);
    RING_CHECK(static_cast<std::int64_t>(v.size()) == in.shape.numel(), c.op, " ", c.name, ": input ", in.name, " has ",
               v.size(), " values for shape ", in.shape);
    if (in.dtype == DType::f32)
      for (double& x : v) x = static_cast<float>(x);
    if (in.dtype == DType::bf16)
      for (double& x : v) x = to_float(to_bf16(static_cast<float>(x)));
    all.push_back(std::move(v));
  }
  return all;
}

template <class T>
Tensor tensor_of(const Shape& shape, const Values& values, const ExecContext& ctx) {
  std::vector<T> host(values.size());
  std::transform(values.begin(), values.end(), host.begin(), [](double x) {
    if constexpr (std::is_same_v<T, bf16>)
      return to_bf16(static_cast<float>(x));
    else
      return static_cast<T>(x);
  });
  return from_host(host, ctx.stream).view(shape);
}

Tensor make_tensor(const Shape& shape, DType dtype, const Values& values, const ExecContext& ctx) {
  if (dtype == DType::i32) return tensor_of<std::int32_t>(shape, values, ctx);
  return dtype == DType::bf16 ? tensor_of<bf16>(shape, values, ctx) : tensor_of<float>(shape, values, ctx);
}

std::vector<Var> make_inputs(const OpCase& c, const std::vector<Values>& values, const ExecContext& ctx) {
  std::vector<Var> vars;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const Input& in = c.inputs[i];
    const bool slot = in.differentiable && is_float(in.dtype);
    vars.push_back({make_tensor(in.shape, in.dtype, values[i], ctx), slot ? std::make_shared<GradSlot>() : nullptr});
  }
  return vars;
}

template <class T>
Values values_of(const T* begin, std::size_t n) {
  Values v(n);
  for (std::size_t i = 0; i < n; ++i) {
    if constexpr (std::is_same_v<T, bf16>)
      v[i] = to_float(begin[i]);
    else
      v[i] = begin[i];
  }
  return v;
}

Values read_values(const Tensor& t) {
  RING_CHECK(t.is_contiguous(), "read_values of a strided tensor");
  const auto n = static_cast<std::size_t>(t.numel());
  if (t.dtype() == DType::i32) return values_of(t.data<std::int32_t>(), n);
  return t.dtype() == DType::bf16 ? values_of(t.data<bf16>(), n) : values_of(t.data<float>(), n);
}

template <class T>
Values fetched(const Tensor& t, const ExecContext& ctx) {
  const std::vector<T> host = to_host<T>(t, ctx.stream);
  return values_of(host.data(), host.size());
}

Values read_values(const Tensor& t, const ExecContext& ctx) {
  if (t.dtype() == DType::i32) return fetched<std::int32_t>(t, ctx);
  return t.dtype() == DType::bf16 ? fetched<bf16>(t, ctx) : fetched<float>(t, ctx);
}

OpCase in_bf16(OpCase c) {
  c.name += "_bf16";
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    Input& in = c.inputs[i];
    if (in.differentiable && in.half && in.dtype == DType::f32) in.dtype = DType::bf16;
  }
  c.tolerance = std::max(c.tolerance, 1e-2);
  c.grad_tolerance = std::max(c.grad_tolerance, 2e-2);
  c.bytes /= 2;
  c.backward_bytes /= 2;
  return c;
}

std::vector<std::vector<OpCase> (*)()>& case_list_makers() {
  static std::vector<std::vector<OpCase> (*)()> makers;
  return makers;
}

std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  for (auto* make : case_list_makers())
    for (OpCase& c : make()) cases.push_back(std::move(c));
  std::stable_sort(cases.begin(), cases.end(), [](const OpCase& a, const OpCase& b) { return a.op < b.op; });
  return cases;
}

}  // namespace ring::test
