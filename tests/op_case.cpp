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
    all.push_back(std::move(v));
  }
  return all;
}

template <class T>
Tensor tensor_of(const Shape& shape, const Values& values, const Context& ctx) {
  std::vector<T> host(values.size());
  std::transform(values.begin(), values.end(), host.begin(), [](double x) { return static_cast<T>(x); });
  return from_host(host, ctx.stream).view(shape);
}

Tensor make_tensor(const Shape& shape, DType dtype, const Values& values, const Context& ctx) {
  return dtype == DType::i32 ? tensor_of<std::int32_t>(shape, values, ctx) : tensor_of<float>(shape, values, ctx);
}

std::vector<Var> make_inputs(const OpCase& c, const std::vector<Values>& values, const Context& ctx) {
  std::vector<Var> vars;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const Input& in = c.inputs[i];
    const bool slot = in.differentiable && in.dtype == DType::f32;
    vars.push_back({make_tensor(in.shape, in.dtype, values[i], ctx), slot ? std::make_shared<GradSlot>() : nullptr});
  }
  return vars;
}

Values read_values(const Tensor& t) {
  RING_CHECK(t.contiguous(), "read_values of a strided tensor");
  const auto n = static_cast<std::size_t>(t.numel());
  if (t.dtype() == DType::i32) return Values(t.data<std::int32_t>(), t.data<std::int32_t>() + n);
  return Values(t.data<float>(), t.data<float>() + n);
}

template <class T>
Values values_of(const Tensor& t, const Context& ctx) {
  const std::vector<T> host = to_host<T>(t, ctx.stream);
  return Values(host.begin(), host.end());
}

Values read_values(const Tensor& t, const Context& ctx) {
  return t.dtype() == DType::i32 ? values_of<std::int32_t>(t, ctx) : values_of<float>(t, ctx);
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
