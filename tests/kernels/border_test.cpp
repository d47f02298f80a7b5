// Every index of a kernel is 64 bits wide where a product of tokens, heads and width can pass 2^31. Each op runs on
// compact operands and on operands whose offsets pass 2^31, with equal results. Tensors are strided, or have rows with
// high numbers, so that CPUs touch only a few megabytes.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "core/philox.h"
#include "kernels/attention/attention.h"
#include "kernels/cpu/gemm.h"
#include "kernels/elementwise.h"
#include "tests/kernels/border_ops.h"
#include "tests/kernels/target.h"
#include "tests/kernels/values.h"

namespace ring::test {
namespace {

std::vector<BorderOp> strided_border_ops() {
  std::vector<BorderOp> ops = border_rows::ops();
  for (BorderOp& op : border_attention::ops()) ops.push_back(std::move(op));
  for (BorderOp& op : border_linear_attention::ops()) ops.push_back(std::move(op));
  return ops;
}
std::vector<BorderOp> all_border_ops() {
  std::vector<BorderOp> ops = strided_border_ops();
  for (BorderOp& op : border_flat::ops()) ops.push_back(std::move(op));
  return ops;
}
std::string border_op_name(const testing::TestParamInfo<BorderOp>& info) {
  return info.param.slot + (info.param.name.empty() ? "" : "_" + info.param.name);
}

ExecContext border_context(Backend backend) {
  return backend == Backend::cpu ? poisoned_context(2) : poisoned_device_context({backend, 0});
}

Values values_of_bytes(DType dtype, const std::vector<unsigned char>& bytes) {
  Values v;
  for (std::size_t i = 0; i < bytes.size(); i += size_of(dtype)) {
    std::uint32_t word = 0;
    std::memcpy(&word, bytes.data() + i, size_of(dtype));
    v.push_back(dtype == DType::f32    ? std::bit_cast<float>(word)
                : dtype == DType::bf16 ? std::bit_cast<float>(word << 16)
                                       : word);
  }
  return v;
}

// cuDNN may choose a different algorithm, with a different order of sums, for other strides.
void expect_equal_results(const std::string_view candidate, const std::vector<BorderOperands::Result>& got,
                          const std::vector<BorderOperands::Result>& want) {
  ASSERT_EQ(got.size(), want.size());
  bool changed = false;
  for (std::size_t i = 0; i < got.size(); ++i) {
    changed |= got[i].after != got[i].before;
    if (candidate == "cudnn")
      EXPECT_LT(
          relative_error(values_of_bytes(got[i].dtype, got[i].after), values_of_bytes(want[i].dtype, want[i].after)),
          1e-2)
          << got[i].name;
    else
      EXPECT_TRUE(got[i].after == want[i].after) << got[i].name << " differs from that of compact operands";
  }
  EXPECT_TRUE(changed) << "the op wrote nothing";
}

void check_border(const BorderOp& op, DType dtype, Backend backend) {
  bool ran = false, more = true;
  for (std::size_t candidate = 0; more; ++candidate) {
    BorderMemory memory({backend, 0});
    if (!memory.exists())
      GTEST_SKIP() << "no " << bytes_text(static_cast<std::size_t>(BorderMemory::kBytes)) << " of addresses or memory";
    BorderOperands far(border_context(backend), &memory, candidate),
        compact(border_context(backend), nullptr, candidate);
    op.call(far, dtype);
    more = far.has_more_candidates();
    if (far.candidate().empty()) continue;
    op.call(compact, dtype);
    SCOPED_TRACE(str(op.slot, " ", far.candidate(), " in ", dtype));
    ASSERT_EQ(compact.candidate(), far.candidate());
    expect_equal_results(far.candidate(), far.results(), compact.results());
    ran = true;
  }
  EXPECT_TRUE(ran) << "no kernel supports the operands";
}

class Border : public testing::TestWithParam<BorderOp> {};
INSTANTIATE_TEST_SUITE_P(All, Border, testing::ValuesIn(strided_border_ops()), border_op_name);
TEST_P(Border, OffsetsPass32Bits) { check_border(GetParam(), DType::f32, Backend::cpu); }

class GpuBorder : public testing::TestWithParam<BorderOp> {};
INSTANTIATE_TEST_SUITE_P(All, GpuBorder, testing::ValuesIn(all_border_ops()), border_op_name);
TEST_P(GpuBorder, OffsetsPass32Bits) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  for (const DType dtype : {DType::f32, DType::bf16}) check_border(GetParam(), dtype, Backend::cuda);
}

// Slots without a test, and the reason.
const std::map<std::string, std::string>& untested_slots() {
  static const std::map<std::string, std::string> slots = {
      {"attention_recall", "reads every element of contiguous [heads, rows]"},
      {"check_and_clip", "has one element"},
      {"gather_sample_lse", "reads rows of every head from contiguous [heads, rows]"},
      {"distance_mass", "reads every row of a contiguous block mass"},
      {"transpose", "reads every element of a contiguous matrix"},
  };
  return slots;
}

TEST(BorderCoverage, EverySlotIsTestedOrHasAReason) {
  std::set<std::string> tested, slots;
  for (const BorderOp& op : all_border_ops()) tested.insert(op.slot);
  for (const KernelInfo& k : kernel_registry()) slots.emplace(k.slot);
  for (const std::string& slot : slots) EXPECT_NE(tested.contains(slot), untested_slots().contains(slot)) << slot;
  for (const auto& [slot, reason] : untested_slots()) EXPECT_TRUE(slots.contains(slot)) << slot;
}

TEST(BorderMatmul, EveryGemmLibraryStridesPast32Bits) {
  for (const cpu::GemmLibrary& library : cpu::gemm_libraries()) {
    SCOPED_TRACE(library.name);
    BorderMemory memory({Backend::cpu, 0});
    if (!memory.exists()) GTEST_SKIP() << "no address space";
    const auto product = [&](BorderMemory* border) {
      BorderOperands o(border_context(Backend::cpu), border, 0);
      const Matmul m{.a = o.rows("a", {257, 48}, DType::f32, Fill::integers),
                     .b = o.rows("b", {32, 48}, DType::f32, Fill::integers),
                     .c = o.rows("c", {257, 32}, DType::f32),
                     .transpose_b = true};
      cpu::pooled_matmul(m, o.ctx, library.fn);
      return o.results();
    };
    expect_equal_results(library.name, product(&memory), product(nullptr));
  }
}

// A stride that does not fit into 32 bits is used as it is, or refused by libraries whose sizes have 32 bits.
TEST(BorderMatmul, NoGemmLibraryTruncatesAStride) {
  constexpr std::int64_t stride = (std::int64_t{1} << 32) + 16;
  for (const cpu::GemmLibrary& library : cpu::gemm_libraries()) {
    SCOPED_TRACE(library.name);
    BorderMemory memory({Backend::cpu, 0});
    if (!memory.exists()) GTEST_SKIP() << "no address space";
    float* const a = memory.contiguous({stride + 16}, DType::f32).data<float>();
    const std::vector<float> b(16, 1);
    float c[2] = {};
    std::fill_n(a, 16, 1.0f);
    std::fill_n(a + stride, 16, 3.0f);
    try {
      library.fn(
          {.m = 2, .n = 1, .k = 16, .a = a, .lda = stride, .b = b.data(), .ldb = 1, .c = c, .ldc = 1, .beta = 0});
      EXPECT_EQ(c[0], 16);
      EXPECT_EQ(c[1], 48);
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("does not fit into 32 bits"), std::string::npos) << e.what();
    }
  }
}

// The log-sum-exps [heads, tokens] pass 2^31 elements although the call has only some of the tokens. With a carry in
// place, all others keep theirs, and nothing reads or writes them.
TEST(BorderAttention, LogSumExpsPass32Bits) {
  constexpr std::int64_t heads = 1025, tokens = std::int64_t{1} << 21, dim = 8, first = tokens - 40, count = 40;
  const ExecContext ctx = poisoned_context(2);
  const auto pages = [](const Shape& shape) {
    const auto storage = untouched_pages(shape.numel() * std::int64_t{sizeof(float)});
    return storage ? Tensor::wrap(storage, shape, DType::f32) : Tensor{};
  };
  const Tensor q = random_tensor("q", {count, heads, dim}, ctx), k = random_tensor("k", {count, 1, dim}, ctx),
               v = random_tensor("v", {count, 1, dim}, ctx), out = random_tensor("out", q.shape(), ctx),
               lse = random_tensor("lse", {heads, count}, ctx), far_q = pages({tokens, heads, dim}),
               far_out = pages(far_q.shape()), far_lse = pages({heads, tokens});
  if (!far_q.defined() || !far_out.defined() || !far_lse.defined()) GTEST_SKIP() << "no 150 GiB of addresses";
  copy(far_q.narrow(0, first, count), q, ctx.stream);
  copy(far_out.narrow(0, first, count), out, ctx.stream);
  const auto part_of_head = [](const Tensor& t, std::int64_t h, std::int64_t from) {
    return t.data<float>() + h * t.dim(1) + from;
  };
  for (std::int64_t h = 0; h < heads; ++h) std::copy_n(part_of_head(lse, h, 0), count, part_of_head(far_lse, h, first));
  const std::vector<Span> keys = {{0, count, 0, 0}}, far_queries = {{first, count, 0, 0}};
  attention_kernel({q, k, v, out, lse, keys, keys, 0.3f, {}, out}, ctx);
  attention_kernel({far_q, k, v, far_out, far_lse, far_queries, keys, 0.3f, {}, far_out}, ctx);
  EXPECT_EQ(read_values(far_out.narrow(0, first, count)), read_values(out));
  for (std::int64_t h = 0; h < heads; ++h)
    ASSERT_TRUE(std::equal(part_of_head(lse, h, 0), part_of_head(lse, h, count), part_of_head(far_lse, h, first)))
        << "head " << h;
}

// Elements are addressed by 64 bits: those of element 2^33 on are not those of element 0.
TEST(BorderDropout, RandomNumbersOfHighElements) {
  constexpr std::int64_t n = 300, width = 100, first = (std::int64_t{1} << 33) + 4;
  const RandomSite site{7, 1, 2};
  for (const bool by_rows : {false, true})
    for (const Backend backend : {Backend::cpu, Backend::cuda}) {
      if (!backend_available(backend)) continue;
      const ExecContext ctx = border_context(backend);
      const std::vector<std::int32_t> numbers = {1 << 30, 2, (1 << 30) + 7};
      const Tensor x = random_tensor("x", {n}, ctx), out = ctx.empty({n});
      dropout_kernel({.x = x,
                      .out = out,
                      .rate = 0.5f,
                      .site = site,
                      .first_element = first,
                      .rows = by_rows ? from_host(numbers, ctx.stream) : Tensor{}},
                     ctx);
      Values want = read_values(x, ctx);
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t row = by_rows ? numbers[static_cast<std::size_t>(i / width)] : i / width;
        const auto element = static_cast<std::uint64_t>(first + row * width + i % width);
        want[static_cast<std::size_t>(i)] *= to_uniform(random_bits(site, element)) < 0.5f ? 0 : 2;
      }
      EXPECT_EQ(read_values(out, ctx), want) << to_string(backend);
    }
}

TEST(BorderRandomNormal, OfHighElements) {
  constexpr std::int64_t n = 100, first = (std::int64_t{1} << 33) + 2;
  const ExecContext ctx = poisoned_context(2);
  const Tensor out = ctx.empty({n});
  random_normal_kernel({.out = out, .site = {7, 1, 2}, .std = 1, .first_element = first}, ctx);
  for (std::int64_t i = 0; i < n; ++i)
    EXPECT_EQ(out.data<float>()[i], random_normal({7, 1, 2}, static_cast<std::uint64_t>(first + i)));
}

}  // namespace
}  // namespace ring::test
