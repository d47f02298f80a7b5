// Gathers, sums and merges of the rows that dilated attention samples, on every available backend, against loops over
// elements.

#include "kernels/attention/sampled_rows.h"

#include <algorithm>

#include "tests/e4m3.h"
#include "tests/kernels/target.h"
#include "tests/kernels/values.h"

namespace ring::test {
namespace {

class SampledRowsOn : public OnTarget {};
INSTANTIATE_TEST_SUITE_P(Cpu, SampledRowsOn, testing::Values(Target{Backend::cpu}));
INSTANTIATE_TEST_SUITE_P(Gpu, SampledRowsOn, testing::Values(Target{Backend::cuda}));

constexpr std::int64_t kSequence = 101;  // rows of a sequence
constexpr double kMergeError = 1e-6;

struct SamplingCase {
  SampledRows rows;
  std::int64_t heads, dim;
  std::int64_t width, at;  // heads have `width` elements in memory, of which `dim` from `at` on are used

  // The row of a sample by definition.
  std::int64_t row(std::int64_t h, std::int64_t i) const {
    return (h * rows.kv_heads / heads + rows.shift) % rows.rate + i * rows.rate;
  }
  template <class Fn>
  void for_samples(const Fn& fn) const {  // fn(sample, head, row)
    for (std::int64_t i = 0; i < rows.count; ++i)
      for (std::int64_t h = 0; h < heads; ++h) fn(i, h, row(h, i));
  }
};

std::vector<SamplingCase> sampling_cases() {
  return {
      {{25, 4, 0, 4}, 4, 64, 64, 0},      // each head another first row
      {{25, 4, 2, 4}, 4, 64, 80, 16},     // first rows 2, 3, 0, 1
      {{33, 3, 1, 8}, 8, 9, 11, 1},       // more heads than the rate; no aligned rows
      {{20, 5, 4, 2}, 6, 128, 128, 0},    // three query heads per KV head
      {{14, 7, 20, 1}, 3, 32, 48, 8},     // a shift above the rate
      {{101, 1, 5, 2}, 2, 16, 16, 0},     // every row
      {{50, 2, 1, 3}, 3, 1200, 1200, 0},  // rows longer than 32 packs
      {{1, 90, 95, 5}, 5, 24, 24, 0},     // one sample
      {{0, 4, 0, 2}, 4, 8, 8, 0},         // none
  };
}

// Rows of heads within larger memory, with the values that the memory holds.
struct HeadsInMemory {
  SamplingCase c;
  Tensor memory, view;
  Values values;

  HeadsInMemory(const SamplingCase& of, const std::string& name, std::int64_t rows, DType type, const ExecContext& ctx)
      : c(of) {
    const Shape shape = {rows, c.heads + 2, c.width};
    fill(shape, random_values(name, shape.numel()), type, ctx);
  }
  void fill(const Shape& shape, const Values& v, DType type, const ExecContext& ctx) {
    memory = make_tensor(shape, type, v, ctx);
    view = memory.narrow(1, 1, c.heads).narrow(2, c.at, c.dim);
    values = read_values(memory, ctx);
  }
  double& element(std::int64_t row, std::int64_t h, std::int64_t d) {
    return values[static_cast<std::size_t>((row * (c.heads + 2) + h + 1) * c.width + c.at + d)];
  }
};

template <class Check>
void for_sampling_cases(const Check& check) {
  for (const SamplingCase& c : sampling_cases()) {
    SCOPED_TRACE(str(c.rows.count, " samples, rate ", c.rows.rate, ", shift ", c.rows.shift, ", ", c.rows.kv_heads,
                     " KV heads, ", c.heads, " heads of ", c.dim));
    check(c);
  }
}

TEST_P(SampledRowsOn, GathersTheseRows) {
  const ExecContext ctx = context();
  for (const DType type : {DType::f32, DType::bf16})
    for_sampling_cases([&](const SamplingCase& c) {
      HeadsInMemory src(c, "rows", kSequence, type, ctx), dst(c, "samples", c.rows.count, type, ctx);
      gather_samples_kernel({src.view, dst.view, c.rows}, ctx);
      c.for_samples([&](std::int64_t i, std::int64_t h, std::int64_t row) {
        for (std::int64_t d = 0; d < c.dim; ++d) dst.element(i, h, d) = src.element(row, h, d);
      });
      EXPECT_EQ(read_values(dst.memory, ctx), dst.values);
    });
}

TEST_P(SampledRowsOn, AddsToTheseRowsAndNoOthers) {
  const ExecContext ctx = context();
  for_sampling_cases([&](const SamplingCase& c) {
    HeadsInMemory src(c, "samples", c.rows.count, DType::f32, ctx), dst(c, "rows", kSequence, DType::f32, ctx);
    add_samples_kernel({src.view, dst.view, c.rows}, ctx);
    c.for_samples([&](std::int64_t i, std::int64_t h, std::int64_t row) {
      for (std::int64_t d = 0; d < c.dim; ++d) {
        double& sum = dst.element(row, h, d);
        sum = static_cast<float>(sum) + static_cast<float>(src.element(i, h, d));
      }
    });
    EXPECT_EQ(read_values(dst.memory, ctx), dst.values);
  });
}

TEST_P(SampledRowsOn, GathersLogSumExps) {
  const ExecContext ctx = context();
  for_sampling_cases([&](const SamplingCase& c) {
    const Tensor src = random_tensor("lse", {c.heads, kSequence}, ctx), dst = ctx.empty({c.heads, c.rows.count});
    gather_sample_lse_kernel({src, dst, c.rows}, ctx);
    const Values all = read_values(src, ctx);
    Values want(static_cast<std::size_t>(dst.numel()));
    c.for_samples([&](std::int64_t i, std::int64_t h, std::int64_t row) {
      want[static_cast<std::size_t>(h * c.rows.count + i)] = all[static_cast<std::size_t>(h * kSequence + row)];
    });
    EXPECT_EQ(read_values(dst, ctx), want);
  });
}

// Two results to merge, which a test may change before the merge.
struct Merge {
  SamplingCase c;
  HeadsInMemory out, part;
  Values lse, part_lse;

  Merge(const SamplingCase& of, const ExecContext& ctx)
      : c(of),
        out(of, "out", kSequence, DType::f32, ctx),
        part(of, "part", of.rows.count, DType::f32, ctx),
        lse(rounded("lse", of.heads * kSequence)),
        part_lse(rounded("part_lse", of.heads * of.rows.count)) {}
  static Values rounded(const std::string& name, std::int64_t n) {
    Values v = random_values(name, n, 8);
    for (double& x : v) x = static_cast<float>(x);
    return v;
  }
  double& lse_at(std::int64_t h, std::int64_t row) { return lse[static_cast<std::size_t>(h * kSequence + row)]; }
  double& part_lse_at(std::int64_t h, std::int64_t i) {
    return part_lse[static_cast<std::size_t>(h * c.rows.count + i)];
  }
  void fill_row(HeadsInMemory& t, std::int64_t row, std::int64_t h, double x) const {
    for (std::int64_t d = 0; d < c.dim; ++d) t.element(row, h, d) = x;
  }
  // Merges on the device. Returns out's memory and lse.
  std::pair<Values, Values> run(const ExecContext& ctx) {
    out.fill(out.memory.shape(), Values(out.values), DType::f32, ctx);
    part.fill(part.memory.shape(), Values(part.values), DType::f32, ctx);
    const Tensor lse_tensor = make_tensor({c.heads, kSequence}, DType::f32, lse, ctx);
    merge_samples_kernel(
        {out.view, lse_tensor, part.view, make_tensor({c.heads, c.rows.count}, DType::f32, part_lse, ctx), c.rows},
        ctx);
    return {read_values(out.memory, ctx), read_values(lse_tensor, ctx)};
  }
  // Merges `out` and `lse` by definition, in fp64.
  void merge_by_definition() {
    c.for_samples([&](std::int64_t i, std::int64_t h, std::int64_t row) {
      double& a = lse_at(h, row);
      const double b = part_lse_at(h, i), sum = std::exp(a) + std::exp(b);
      for (std::int64_t d = 0; d < c.dim; ++d) {
        double& x = out.element(row, h, d);
        const double y = part.element(i, h, d);
        if (b != -kInfinity)
          x = a == -kInfinity ? y : (std::exp(a) * x + std::exp(b) * y) / sum;
        else if (a == -kInfinity)
          x = 0;
      }
      if (b != -kInfinity) a = a == -kInfinity ? b : std::log(sum);
    });
  }
};

// Results that are taken unchanged are numbers of f32 and must be equal. A mean in fp64 is no number of f32.
void expect_merged(const Values& got, const Values& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    if (std::isnan(want[i]))
      ASSERT_TRUE(std::isnan(got[i])) << i;
    else if (want[i] == static_cast<float>(want[i]))
      ASSERT_EQ(got[i], want[i]) << i;
    else
      ASSERT_LE(std::abs(got[i] - want[i]), kMergeError * std::max(1.0, std::abs(want[i]))) << i;
}

void expect_merged(Merge& m, const ExecContext& ctx) {
  const auto [out, lse] = m.run(ctx);
  m.merge_by_definition();
  expect_merged(out, m.out.values);
  expect_merged(lse, m.lse);
}

TEST_P(SampledRowsOn, MergesTheseRowsAndNoOthers) {
  const ExecContext ctx = context();
  for_sampling_cases([&](const SamplingCase& c) {
    Merge m(c, ctx);
    expect_merged(m, ctx);
  });
}

// Outputs of queries without keys are not read: they hold NaN here.
TEST_P(SampledRowsOn, MergesQueriesWithoutKeys) {
  const ExecContext ctx = context();
  for_sampling_cases([&](const SamplingCase& c) {
    Merge m(c, ctx);
    c.for_samples([&](std::int64_t i, std::int64_t h, std::int64_t row) {
      const std::int64_t without = (i + h) % 4;  // neither result, the first, the second, both
      if (without & 1) m.lse_at(h, row) = -kInfinity, m.fill_row(m.out, row, h, kNaN);
      if (without & 2) m.part_lse_at(h, i) = -kInfinity, m.fill_row(m.part, i, h, kNaN);
    });
    expect_merged(m, ctx);
  });
}

TEST_P(SampledRowsOn, NaNIsNotLostInMerges) {
  const ExecContext ctx = context();
  for (const std::int64_t dim : {64, 9}) {
    const SamplingCase c{{8, 4, 1, 2}, 2, dim, dim, 0};
    Merge m(c, ctx);
    m.lse_at(0, c.row(0, 0)) = kNaN;
    m.part_lse_at(1, 1) = kNaN;
    m.out.element(c.row(0, 2), 0, 5) = kNaN;
    m.part.element(3, 1, 7) = kNaN;
    m.part_lse_at(0, 4) = -400, m.part.element(4, 0, 3) = kNaN;  // the weight is 0 in f32
    m.lse_at(1, c.row(1, 5)) = kNaN, m.part_lse_at(1, 5) = -kInfinity;
    expect_merged(m, ctx);
    const auto is_nan = [](double x) { return std::isnan(x); };
    EXPECT_EQ(std::ranges::count_if(m.out.values, is_nan), 2 * dim + 3);
    EXPECT_EQ(std::ranges::count_if(m.lse, is_nan), 3);
  }
}

// Rows that are 2^30 elements apart, in uninitialized memory of the device.
TEST(GpuSampledRows, OffsetsHave64Bits) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  const ExecContext ctx{Stream::create({Backend::cuda, 0})};
  constexpr std::int64_t kApart = std::int64_t{1} << 30, dim = 8;
  const Tensor rows = ctx.empty({3, kApart / dim, dim}, DType::bf16).narrow(1, 0, 1);
  const Tensor last = make_tensor({1, 1, dim}, DType::bf16, random_values("last", dim), ctx);
  ctx.stream.impl().copy(rows.raw() + 2 * kApart * 2, last.raw(), last.bytes());
  for (const SampledRows& r : {SampledRows{1, 3, 2}, SampledRows{2, 2, 0}}) {
    const Tensor dst = ctx.empty({r.count, 1, dim}, DType::bf16);
    gather_samples_kernel({rows, dst, r}, ctx);
    EXPECT_EQ(read_values(dst.narrow(0, r.count - 1, 1), ctx), read_values(last, ctx));
  }
}

TEST(SampledRows, RowsThatDoNotFitAreRefused) {
  const ExecContext ctx = poisoned_context(1);
  const Tensor rows = ctx.zeros({10, 4, 8}), samples = ctx.zeros({3, 4, 8}), half = ctx.zeros({3, 4, 8}, DType::bf16),
               lse = ctx.zeros({4, 10}), sample_lse = ctx.zeros({4, 3});
  const SampledRows good{3, 4, 0, 2};
  EXPECT_NO_THROW(gather_samples_kernel({rows, samples, good}, ctx));
  const auto refuses = [&](const SampledRows& r) {
    EXPECT_THROW(gather_samples_kernel({rows, samples, r}, ctx), Error);
    EXPECT_THROW(add_samples_kernel({samples, rows, r}, ctx), Error);
    EXPECT_THROW(gather_sample_lse_kernel({lse, sample_lse, r}, ctx), Error);
    EXPECT_THROW(merge_samples_kernel({rows, lse, samples, sample_lse, r}, ctx), Error);
  };
  refuses({3, 4, 1, 2});   // rows 2, 6 and 10 of 10
  refuses({2, 4, 0, 2});   // room for three samples
  refuses({3, 4, 0, 3});   // 4 heads of 3 KV heads
  refuses({3, 0, 0, 2});   // no rate
  refuses({3, 4, -1, 2});  // a row before the sequence
  EXPECT_THROW(gather_samples_kernel({rows, half, good}, ctx), Error) << "of two types";
  EXPECT_THROW(add_samples_kernel({half, rows, good}, ctx), Error) << "sums are f32";
  EXPECT_THROW(merge_samples_kernel({rows, lse, half, sample_lse, good}, ctx), Error) << "results are f32";
  EXPECT_THROW(gather_sample_lse_kernel({ctx.zeros({4, 11}).narrow(1, 0, 10), sample_lse, good}, ctx), Error)
      << "not contiguous";
}

}  // namespace
}  // namespace ring::test
