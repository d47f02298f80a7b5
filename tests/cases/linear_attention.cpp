#include "autograd/linear_attention.h"

#include <cmath>
#include <utility>

#include "tests/op_case.h"

namespace ring::test {
namespace {

constexpr double kGatedEps = 1e-6f;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Documents of a call. state: the op starts from a given state and returns the last one.
struct Documents {
  std::vector<std::int32_t> offsets;
  std::vector<std::int32_t> lengths{};  // rows of each document; the other rows up to the next offset are padding
  bool state = false;

  std::int64_t count() const { return std::ssize(offsets) - 1; }
  std::int64_t rows() const { return offsets.back(); }
  std::int64_t length(std::int64_t b) const {
    const auto i = static_cast<std::size_t>(b);
    return lengths.empty() ? offsets[i + 1] - offsets[i] : lengths[i];
  }
  Sequences sequences() const { return {.offsets = offsets, .rows = {0}, .lengths = lengths}; }
};

// --- Short convolution. Inputs: x [N,C], w [C,K], then the initial state [documents,K-1,C].
struct ConvCase {
  std::string name;
  Documents documents;
  std::int64_t channels, taps;
};

std::vector<Values> conv_oracle(const ConvCase& s, const std::vector<Values>& in) {
  const std::int64_t width = s.channels, kept = s.taps - 1;
  Values y(in[0].size()), final;
  for (std::int64_t b = 0; b < s.documents.count(); ++b) {
    const std::int64_t first = s.documents.offsets[static_cast<std::size_t>(b)], length = s.documents.length(b);
    const auto token = [&](std::int64_t t, std::int64_t c) {
      if (t >= 0) return in[0][static_cast<std::size_t>((first + t) * width + c)];
      return s.documents.state ? in[2][static_cast<std::size_t>((b * kept + kept + t) * width + c)] : 0.0;
    };
    for (std::int64_t t = 0; t < length; ++t)
      for (std::int64_t c = 0; c < width; ++c) {
        double sum = 0;
        for (std::int64_t j = 0; j < s.taps; ++j)
          sum += in[1][static_cast<std::size_t>(c * s.taps + j)] * token(t - kept + j, c);
        y[static_cast<std::size_t>((first + t) * width + c)] = sum * sigmoid(sum);
      }
    for (std::int64_t t = length - kept; t < length; ++t)
      for (std::int64_t c = 0; c < width; ++c) final.push_back(token(t, c));
  }
  if (!s.documents.state) return {y};
  return {y, final};
}

OpCase make_conv(const ConvCase& s) {
  OpCase c;
  c.op = "short_conv";
  c.name = s.name;
  c.inputs = {{.name = "x", .shape = {s.documents.rows(), s.channels}, .scale = 2},
              {.name = "w", .shape = {s.channels * s.taps}}};
  if (s.documents.state)
    c.inputs.push_back({.name = "initial", .shape = {s.documents.count(), s.taps - 1, s.channels}, .half = false});
  c.oracle = [s](const std::vector<Values>& in) { return conv_oracle(s, in); };
  c.run = [s](Run& run, const std::vector<Var>& in) {
    if (!s.documents.state) return std::vector<Var>{short_conv(run, in[0], in[1], s.documents.sequences())};
    Var final;
    const Var y = short_conv(run, in[0], in[1], s.documents.sequences(), {.initial = in[2], .final = &final});
    return std::vector<Var>{y, final};
  };
  const auto n = static_cast<double>(s.documents.rows() * s.channels);
  c.flops = 2 * n * static_cast<double>(s.taps);
  c.backward_flops = 3 * c.flops;
  c.bytes = 8 * n;
  c.backward_bytes = 16 * n;
  return c;
}

// --- Gates. Inputs: ab [N,2H], log_decay [H], dt_bias [H].
OpCase make_gates(std::int64_t rows, std::int64_t heads, double max_beta, double scale) {
  OpCase c;
  c.op = "delta_gates";
  c.name = str("N", rows, "_H", heads, max_beta > 1 ? "_negative" : "", "_scale", scale);
  c.inputs = {{.name = "ab", .shape = {rows, 2 * heads}, .scale = scale},
              {.name = "log_decay", .shape = {heads}},
              {.name = "dt_bias", .shape = {heads}, .scale = 2}};
  const auto h = static_cast<std::size_t>(heads);
  c.oracle = [h, max_beta](const std::vector<Values>& in) {
    Values gates(in[0].size());
    for (std::size_t row = 0; row < gates.size(); row += 2 * h)
      for (std::size_t i = 0; i < h; ++i) {
        gates[row + i] = -std::exp(in[1][i]) * std::log1p(std::exp(in[0][row + i] + in[2][i]));
        gates[row + h + i] = max_beta * sigmoid(in[0][row + h + i]);
      }
    return std::vector<Values>{gates};
  };
  c.run = [max_beta](Run& run, const std::vector<Var>& in) {
    return std::vector<Var>{delta_gates(run, in[0], in[1], in[2], static_cast<float>(max_beta))};
  };
  const auto n = static_cast<double>(rows * heads);
  c.flops = 20 * n;
  c.backward_flops = 40 * n;
  c.bytes = 16 * n;
  c.backward_bytes = 24 * n;
  return c;
}

// --- The gated delta rule. Inputs: qkv, gates, then the initial state [documents,Hv,Dk,Dv].
struct DeltaCase {
  std::string name;
  Documents documents;
  GatedDeltaRule rule;
  double decay = 0.2, max_beta = 1;  // g is in [-decay, 0], beta in [0, max_beta]
  bool bench = false;

  std::int64_t columns() const { return 2 * rule.key_heads * rule.key_width + rule.value_heads * rule.value_width; }
  Shape state() const { return {documents.count(), rule.value_heads, rule.key_width, rule.value_width}; }
};

Values unit_head(const Values& qkv, std::int64_t first, std::int64_t width) {
  Values x(qkv.begin() + first, qkv.begin() + first + width);
  double squares = kGatedEps;
  for (const double v : x) squares += v * v;
  for (double& v : x) v /= std::sqrt(squares);
  return x;
}

// Computes the recurrence token by token for one value head of one document. Replaces `state` [Dk,Dv] by the last
// state.
void delta_head(const DeltaCase& s, const std::vector<Values>& in, std::int64_t document, std::int64_t head,
                Values& out, double* state) {
  const GatedDeltaRule& r = s.rule;
  const std::int64_t key_head = head * r.key_heads / r.value_heads, keys = r.key_heads * r.key_width;
  for (std::int64_t t = 0; t < s.documents.length(document); ++t) {
    const std::int64_t row = s.documents.offsets[static_cast<std::size_t>(document)] + t;
    const std::int64_t q_at = row * s.columns() + key_head * r.key_width,
                       v_at = row * s.columns() + 2 * keys + head * r.value_width;
    const Values q = unit_head(in[0], q_at, r.key_width), k = unit_head(in[0], q_at + keys, r.key_width);
    const double g = in[1][static_cast<std::size_t>(row * 2 * r.value_heads + head)],
                 beta = in[1][static_cast<std::size_t>(row * 2 * r.value_heads + r.value_heads + head)];
    for (std::int64_t c = 0; c < r.value_width; ++c) {
      double stored = 0, read = 0;
      for (std::size_t i = 0; i < k.size(); ++i)
        stored += k[i] * std::exp(g) * state[static_cast<std::int64_t>(i) * r.value_width + c];
      const double correction = beta * (in[0][static_cast<std::size_t>(v_at + c)] - stored);
      for (std::size_t i = 0; i < k.size(); ++i) {
        double& x = state[static_cast<std::int64_t>(i) * r.value_width + c];
        x = std::exp(g) * x + k[i] * correction;
        read += q[i] * x;
      }
      out[static_cast<std::size_t>((row * r.value_heads + head) * r.value_width + c)] = r.scale * read;
    }
  }
}

std::vector<Values> delta_oracle(const DeltaCase& s, const std::vector<Values>& in) {
  const GatedDeltaRule& r = s.rule;
  Values out(static_cast<std::size_t>(s.documents.rows() * r.value_heads * r.value_width));
  Values states = s.documents.state ? in[2] : Values(static_cast<std::size_t>(s.state().numel()));
  for (std::int64_t b = 0; b < s.documents.count(); ++b)
    for (std::int64_t h = 0; h < r.value_heads; ++h)
      delta_head(s, in, b, h, out, states.data() + (b * r.value_heads + h) * r.key_width * r.value_width);
  if (!s.documents.state) return {out};
  return {out, states};
}

Values gate_values(const DeltaCase& s) {
  const std::int64_t heads = s.rule.value_heads;
  Values all = random_values("gates/" + s.name, s.documents.rows() * 2 * heads);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool decay = static_cast<std::int64_t>(i) % (2 * heads) < heads;
    all[i] = decay ? (all[i] - 1) / 2 * s.decay : (all[i] + 1) / 2 * s.max_beta;
  }
  return all;
}

OpCase make_delta(const DeltaCase& s) {
  OpCase c;
  c.op = "gated_delta";
  c.name = s.name;
  c.inputs = {{.name = "qkv", .shape = {s.documents.rows(), s.columns()}},
              {.name = "gates",
               .shape = {s.documents.rows(), 2 * s.rule.value_heads},
               .values = gate_values(s),
               .half = false}};
  if (s.documents.state) c.inputs.push_back({.name = "initial", .shape = s.state(), .half = false});
  c.oracle = [s](const std::vector<Values>& in) { return delta_oracle(s, in); };
  c.run = [s](Run& run, const std::vector<Var>& in) {
    if (!s.documents.state) return std::vector<Var>{gated_delta(run, in[0], in[1], s.documents.sequences(), s.rule)};
    Var final;
    const Var y = gated_delta(run, in[0], in[1], s.documents.sequences(), s.rule, {.initial = in[2], .final = &final});
    return std::vector<Var>{y, final};
  };
  const auto n = static_cast<double>(s.documents.rows());
  c.flops = 6 * n * static_cast<double>(s.state().numel() / s.documents.count());
  c.backward_flops = 2 * c.flops;
  c.bytes = 4 * n * static_cast<double>(s.columns() + s.rule.value_heads * (s.rule.value_width + 2));
  c.backward_bytes = 2 * c.bytes;
  c.bench = s.bench;
  return c;
}

// --- The norm with a gate. Inputs: x [N,H,D], z [N,H D], w [D].
OpCase make_gated_norm(std::int64_t rows, std::int64_t heads, std::int64_t width, double scale) {
  OpCase c;
  c.op = "gated_norm";
  c.name = str("N", rows, "_H", heads, "_D", width, scale > 1 ? "_large" : "");
  c.inputs = {{.name = "x", .shape = {rows, heads, width}, .scale = scale},
              {.name = "z", .shape = {rows, heads * width}, .scale = 2},
              {.name = "w", .shape = {width}}};
  c.oracle = [](const std::vector<Values>& in) {
    const std::size_t dim = in[2].size();
    Values y(in[0].size());
    for (std::size_t at = 0; at < y.size(); at += dim) {
      double squares = 0;
      for (std::size_t i = 0; i < dim; ++i) squares += in[0][at + i] * in[0][at + i];
      const double rstd = 1 / std::sqrt(squares / static_cast<double>(dim) + kGatedEps);
      for (std::size_t i = 0; i < dim; ++i)
        y[at + i] = in[0][at + i] * rstd * in[2][i] * in[1][at + i] * sigmoid(in[1][at + i]);
    }
    return std::vector<Values>{y};
  };
  c.run = [](Run& run, const std::vector<Var>& in) {
    return std::vector<Var>{gated_norm(run, in[0], in[1], in[2], static_cast<float>(kGatedEps))};
  };
  const auto n = static_cast<double>(rows * heads * width);
  c.flops = 10 * n;
  c.backward_flops = 25 * n;
  c.bytes = 12 * n;
  c.backward_bytes = 20 * n;
  return c;
}

std::vector<OpCase> linear_attention_cases() {
  const Documents one{{0, 37}}, packed{{0, 70, 71, 130, 195}}, padded{{0, 80, 120, 160}, {66, 40, 1}},
      carried{{0, 2, 100, 101}, {}, true}, carried_padded{{0, 80, 84}, {75, 3}, true}, steps{{0, 1, 2, 3}, {}, true},
      longer{{0, 40, 640}, {}, true};
  std::vector<OpCase> list;
  for (const ConvCase& s :
       {ConvCase{"one_C5_K4", one, 5, 4}, ConvCase{"packed_C40_K4", packed, 40, 4},
        ConvCase{"padded_C9_K2", padded, 9, 2}, ConvCase{"carried_C8_K4", carried, 8, 4},
        ConvCase{"carried_padded_C3_K5", carried_padded, 3, 5}, ConvCase{"steps_C33_K3", steps, 33, 3}})
    list.push_back(make_conv(s));
  list.push_back(make_gates(7, 3, 1, 2));
  list.push_back(make_gates(300, 4, 2, 8));
  for (const DeltaCase& s :
       {DeltaCase{"one_D8", one, {1, 1, 8, 8, 0.5f}}, DeltaCase{"packed_grouped_D24_D16", packed, {2, 4, 24, 16, 0.2f}},
        DeltaCase{"padded_D16", padded, {2, 2, 16, 16, 1}, 2, 2},
        DeltaCase{"carried_grouped_D5_D7", carried, {2, 6, 5, 7, 0.4f}, 0.2, 2},
        DeltaCase{"carried_padded_D8", carried_padded, {1, 2, 8, 8, 0.3f}, 0.01},
        DeltaCase{"fast_decay_D8", one, {1, 1, 8, 8, 1}, 40}, DeltaCase{"steps_D16", steps, {1, 2, 16, 8, 1}},
        DeltaCase{"saved_states_D8", longer, {1, 2, 8, 8, 1}, 0.02},
        // In bf16, GPUs compute heads of these widths on tensor cores.
        DeltaCase{"packed_grouped_D128", packed, {1, 2, 128, 128, 0.1f}, 0.1},
        DeltaCase{"carried_padded_D64", carried_padded, {1, 1, 64, 64, 0.1f}, 0.2, 2},
        DeltaCase{"saved_states_D64_D128", longer, {1, 1, 64, 128, 0.1f}, 0.02},
        DeltaCase{"fast_decay_D128_D64", padded, {2, 2, 128, 64, 0.1f}, 40}})
    list.push_back(make_delta(s));
  list.push_back(make_delta({"N4096_H4_D128", {{0, 4096}}, {4, 4, 128, 128, 0.1f}, 0.05, 1, true}));
  list.push_back(make_gated_norm(5, 1, 7, 1));
  list.push_back(make_gated_norm(90, 3, 40, 50));
  return list;
}

const AddCases added_linear_attention(linear_attention_cases);

}  // namespace
}  // namespace ring::test
