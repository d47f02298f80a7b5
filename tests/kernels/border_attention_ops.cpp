#include "kernels/attention/attention.h"
#include "kernels/attention/blocks.h"
#include "kernels/attention/entropy.h"
#include "kernels/attention/learned/block_index.h"
#include "kernels/attention/pools/gated_decode.h"
#include "kernels/attention/pools/pool_gate.h"
#include "kernels/attention/pools/weighted_pool.h"
#include "kernels/attention/sampled_rows.h"
#include "kernels/attention/selected/attention_recall.h"
#include "kernels/attention/selected/block_mass.h"
#include "kernels/attention/selected/block_select.h"
#include "kernels/attention/sink.h"
#include "tests/kernels/border_ops.h"

namespace ring::test::border_attention {
namespace {

constexpr std::int32_t kTokens = 256;
constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 64, kBorder = std::int64_t{1} << 31;
// Rows of a selection, of 2 x 64 elements each: row 2^24 is beyond the border.
constexpr std::int32_t kBlock = 64, kBlocks = kTokens / kBlock;
constexpr std::int64_t kColumns = 64, kFirstRow = kBorder / (kKvHeads * kColumns);

const std::vector<Span>& one_document() {
  static const std::vector<Span> spans = {{0, kTokens, 0, 0}};
  return spans;
}
Tensor query_rows(BorderOperands& o, const std::string& name, DType t) {
  return o.rows(name, {kTokens, kHeads, kDim}, t);
}
Tensor key_rows(BorderOperands& o, const std::string& name, DType t) {
  return o.rows(name, {kTokens, kKvHeads, kDim}, t);
}

Attention forward_args(BorderOperands& o, DType t) {
  return {.q = query_rows(o, "q", t),
          .k = key_rows(o, "k", t),
          .v = key_rows(o, "v", t),
          .out = query_rows(o, "out", t),
          .lse = o.whole("lse", {kHeads, kTokens}),
          .queries = one_document(),
          .keys = one_document(),
          .scale = 0.125f};
}
AttentionBackward backward_args(BorderOperands& o, DType t) {
  return {.q = query_rows(o, "q", t),
          .k = key_rows(o, "k", t),
          .v = key_rows(o, "v", t),
          .out = query_rows(o, "out", t),
          .lse = o.whole("lse", {kHeads, kTokens}),
          .dout = query_rows(o, "dout", t),
          .dq = query_rows(o, "dq", t),
          .dk = key_rows(o, "dk", t),
          .dv = key_rows(o, "dv", t),
          .queries = one_document(),
          .keys = one_document(),
          .scale = 0.125f};
}
Pattern dilated() {
  Pattern p;
  p.branches.push_back({.segment = kNoSegment - 1, .rate = 2});
  return p;
}

void attention(BorderOperands& o, DType t) { o.run(attention_kernel, forward_args(o, t)); }
void attention_dilated(BorderOperands& o, DType t) {
  Attention a = forward_args(o, t);
  a.pattern = dilated();
  o.run(attention_kernel, a);
}
void attention_with_carry(BorderOperands& o, DType t) {
  Attention a = forward_args(o, t);
  a.carry = query_rows(o, "carry", DType::f32);
  a.dropout = {.rate = 0.25f, .site = {7, 1, 2}, .first_row = std::int64_t{1} << 33};
  o.run(attention_kernel, a);
}
void attention_backward(BorderOperands& o, DType t) { o.run(attention_backward_kernel, backward_args(o, t)); }
void attention_backward_dilated(BorderOperands& o, DType t) {
  AttentionBackward a = backward_args(o, t);
  a.pattern = dilated();
  o.run(attention_backward_kernel, a);
}

std::shared_ptr<const BlockPattern> content_blocks() {
  return std::make_shared<const BlockPattern>(
      kBlock, std::vector<BlockRule>{{.kind = BlockRuleKind::content, .local = 1, .first = 1, .keep = 3}});
}
Pattern selecting() {
  Pattern p;
  p.blocks = content_blocks();
  return p;
}
BlockSelect select_args(BorderOperands& o, std::int64_t room, std::int64_t first) {
  const Tensor queries = o.whole("block_queries", {kBlocks, kKvHeads, 8}),
               keys = o.whole("block_keys", {kBlocks, kKvHeads, 8});
  const Tensor kept = o.last_rows("kept", first, {kBlocks, kKvHeads, room}, DType::i32);
  const SelectedRows rows{.kept = static_cast<std::int32_t>(o.shifted(first)), .begin = 0, .end = kBlocks};
  return {.queries = queries, .keys = keys, .kept = kept, .documents = {rows}, .blocks = content_blocks()};
}
BlockSelection selection_of(BorderOperands& o) {
  const BlockSelect args = select_args(o, kColumns, kFirstRow);
  block_select_kernel(args, o.ctx);
  return {args.kept, {args.documents[0].kept}};
}

void block_select(BorderOperands& o, DType) { o.run(block_select_kernel, select_args(o, kColumns, kFirstRow)); }
void block_select_by_scores(BorderOperands& o, DType) {
  BlockSelect a = select_args(o, 3, kFirstRow);
  a.queries = a.keys = {};
  a.scores = o.last_rows("scores", kFirstRow, {kBlocks, kKvHeads, kColumns}, DType::f32);
  o.run(block_select_kernel, a);
}
void attention_selected(BorderOperands& o, DType t) {
  Attention a = forward_args(o, t);
  a.pattern = selecting(), a.selection = selection_of(o);
  o.run(attention_kernel, a);
}
void attention_backward_selected(BorderOperands& o, DType t) {
  AttentionBackward a = backward_args(o, t);
  a.pattern = selecting(), a.selection = selection_of(o);
  o.run(attention_backward_kernel, a);
}
void selected_pairs(BorderOperands& o, DType) {
  const BlockSelection selection = selection_of(o);
  o.run(selected_pairs_kernel, {.selection = selection,
                                .out = o.last_rows("out", kFirstRow, {kBlocks, 2}, DType::f32),
                                .queries = one_document(),
                                .keys = one_document(),
                                .pattern = selecting()});
}
void block_mass(BorderOperands& o, DType t) {
  const BlockSelection selection = selection_of(o);
  o.run(block_mass_kernel, {.q = query_rows(o, "q", t),
                            .k = key_rows(o, "k", t),
                            .lse = o.whole("lse", {kHeads, kTokens}),
                            .mass = o.last_rows("mass", kFirstRow, {kBlocks, kKvHeads, kColumns}, DType::f32),
                            .spans = one_document(),
                            .scale = 0.125f,
                            .pattern = selecting(),
                            .selection = selection,
                            .queries = one_document()});
}

void index_scores(BorderOperands& o, DType t) {
  const IndexShape shape{.heads = 4, .dim = 32, .kv_heads = 1, .first_head = 0, .count = 1};
  const std::int64_t first = kBorder / shape.width() + 1, first_scores = kBorder / kColumns;
  const Tensor projected = o.last_rows("projected", first, {kBlocks, shape.width()}, t);
  const Tensor scores = o.last_rows("scores", first_scores, {kBlocks, 1, kColumns}, DType::f32);
  const auto row = static_cast<std::int32_t>(o.shifted(first)),
             score_row = static_cast<std::int32_t>(o.shifted(first_scores));
  o.run(index_scores_kernel, {projected, scores, shape, {{row, row, score_row, 0, kBlocks}}});
}
// Two cases, because the memory holds two tensors that pass the border.
void index_scores_backward_by_tokens(BorderOperands& o, DType t) {
  const IndexShape shape{.heads = 4, .dim = 128, .kv_heads = 1, .first_head = 0, .count = 1};
  const std::int64_t first = kBorder / shape.width() + 1;
  const Tensor projected = o.last_rows("projected", first, {kBlocks, shape.width()}, t);
  const Tensor dscores = o.whole("dscores", {kBlocks, 1, kBlocks});
  const Tensor kept = o.whole("kept", {kBlocks, 1, kBlocks}, DType::i32, Fill::zeros);
  const Tensor dprojected = o.last_rows("dprojected", first, {kBlocks, shape.width()}, t);
  const auto row = static_cast<std::int32_t>(o.shifted(first));
  o.run(index_scores_backward_kernel, {projected, kept, dscores, dprojected, shape, {{row, row, 0, 0, kBlocks}}});
}
void index_scores_backward_by_scores(BorderOperands& o, DType t) {
  const IndexShape shape{.heads = 4, .dim = 128, .kv_heads = 1, .first_head = 0, .count = 1};
  const std::int64_t first = kBorder / kColumns;
  const Tensor projected = o.whole("projected", {kBlocks, shape.width()}, t);
  const Tensor dscores = o.last_rows("dscores", first, {kBlocks, 1, kColumns}, DType::f32);
  const Tensor kept = o.last_rows("kept", first, {kBlocks, 1, kColumns}, DType::i32, Fill::zeros);
  const Tensor dprojected = o.whole("dprojected", {kBlocks, shape.width()}, t);
  const auto row = static_cast<std::int32_t>(o.shifted(first));
  o.run(index_scores_backward_kernel, {projected, kept, dscores, dprojected, shape, {{0, 0, row, 0, kBlocks}}});
}
void index_distances_backward(BorderOperands& o, DType t) {
  const IndexShape shape{.heads = 4, .dim = 32, .kv_heads = 1, .first_head = 0, .count = 1, .distances = 4};
  const std::int64_t first = kBorder / kColumns;
  const Tensor dscores = o.last_rows("dscores", first, {kBlocks, 1, kColumns}, DType::f32);
  const Tensor kept = o.last_rows("kept", first, {kBlocks, 1, kColumns}, DType::i32, Fill::zeros);
  const auto row = static_cast<std::int32_t>(o.shifted(first));
  o.run(index_distances_backward_kernel,
        {kept, dscores, o.whole("dbiases", {shape.biases()}, t), shape, {{row, row, row, 0, kBlocks}}});
}
void index_loss(BorderOperands& o, DType) {
  constexpr std::int64_t kRoom = 256, kFirst = kBorder / (kKvHeads * kRoom);
  const Shape shape{kBlocks, kKvHeads, kRoom};
  const Tensor scores = o.last_rows("scores and mass", kFirst, shape, DType::f32, Fill::positive);
  const Tensor kept = o.last_rows("kept", kFirst, shape, DType::i32, Fill::ones);
  const Tensor loss = o.last_rows("loss", kFirst, {kBlocks}, DType::f32);
  const PoolSegment rows{.first = 0, .count = kTokens, .out = static_cast<std::int32_t>(o.shifted(kFirst))};
  o.run(index_loss_kernel, {.scores = scores,
                            .mass = scores,
                            .kept = kept,
                            .loss = loss,
                            .gradient = scores,
                            .documents = {rows},
                            .blocks = content_blocks()});
}

AttentionDecode decode_args(BorderOperands& o, DType t, DType cache) {
  const auto cached = [&](const char* name) {
    return o.rows(name, {kTokens, kKvHeads * kDim}, cache).split_dim(0, kTokens).split_dim(2, kDim);
  };
  AttentionDecode a{.q = o.whole("q", {1, kHeads, kDim}, t),
                    .k = cached("k"),
                    .v = cached("v"),
                    .out = o.whole("out", {1, kHeads, kDim}, t),
                    .rows = {{0, kTokens, 1}, {1, kTokens / 2, 2}},
                    .starts = {0, 1, 2},
                    .scale = 0.125f};
  if (cache != DType::u8) return a;
  constexpr std::uint8_t kOne = 127;  // the exponent of 1
  const std::vector<std::uint8_t> ones(static_cast<std::size_t>(kTokens * kKvHeads), kOne);
  a.k_scales = a.v_scales = from_host(ones, o.ctx.stream).view({1, kTokens, kKvHeads});
  return a;
}
void attention_decode(BorderOperands& o, DType t) { o.run(attention_decode_kernel, decode_args(o, t, t)); }
void attention_decode_fp8(BorderOperands& o, DType t) { o.run(attention_decode_kernel, decode_args(o, t, DType::u8)); }
void gated_decode(BorderOperands& o, DType t) {
  o.run(gated_decode_kernel, {decode_args(o, t, t), o.whole("gates", {1, kHeads}, t), 1});
}

void attention_entropy(BorderOperands& o, DType t) {
  o.run(attention_entropy_kernel, {query_rows(o, "q", t), o.whole("keys", {kTokens, kHeads, kDim}),
                                   o.whole("lse", {kHeads, kTokens}), o.whole("out", {kTokens, 2 * kHeads}), 0.125f});
}
void attention_sink(BorderOperands& o, DType t) {
  o.run(attention_sink_kernel,
        {query_rows(o, "out", t), o.whole("lse", {kHeads, kTokens}), o.whole("sinks", {kHeads}, t)});
}
void attention_sink_backward(BorderOperands& o, DType t) {
  o.run(attention_sink_backward_kernel,
        {query_rows(o, "out", t), o.whole("lse", {kHeads, kTokens}), o.whole("sinks", {kHeads}, t),
         query_rows(o, "dout", t), o.whole("terms", {kTokens, kHeads})});
}
void pool_gate(BorderOperands& o, DType t) {
  o.run(pool_gate_kernel, {.pooled_lse = o.whole("pooled_lse", {kHeads, kTokens}),
                           .lse = o.whole("lse", {kHeads, kTokens}),
                           .out = o.whole("out", {kHeads, kTokens}),
                           .dout = query_rows(o, "dout", t),
                           .pooled = o.whole("pooled", {kTokens, kHeads, kDim}),
                           .attended = query_rows(o, "attended", t)});
}
void block_pool(BorderOperands& o, DType t) {
  o.run(block_pool_kernel,
        {query_rows(o, "x", t), o.whole("out", {kBlocks, kKvHeads, kDim}), {{0, kTokens, 0, 0}}, kBlock});
}
void block_pool_backward(BorderOperands& o, DType) {
  o.run(block_pool_backward_kernel,
        {o.whole("dout", {kBlocks, kHeads, kDim}), query_rows(o, "dx", DType::f32), {{0, kTokens, 0, 0}}, kBlock});
}
void weighted_pool(BorderOperands& o, DType t) {
  const Shape pools = {kBlocks, kKvHeads, kDim};
  o.run(weighted_pool_kernel, {.k = key_rows(o, "k", t),
                               .v = key_rows(o, "v", t),
                               .x = key_rows(o, "x", t),
                               .positions = o.whole("positions", {kKvHeads, kBlock}, t),
                               .query = o.whole("query", {kKvHeads, kDim}, t),
                               .keys = o.whole("keys", pools, t),
                               .values = o.whole("values", pools, t),
                               .weights = o.whole("weights", {kBlocks, kKvHeads, kBlock}),
                               .rows = {{0, kTokens, 0, 0}}});
}
void weighted_pool_backward(BorderOperands& o, DType t) {
  const Shape pools = {kBlocks, kKvHeads, kDim};
  o.run(weighted_pool_backward_kernel, {.k = key_rows(o, "k", t),
                                        .v = key_rows(o, "v", t),
                                        .query = o.whole("query", {kKvHeads, kDim}, t),
                                        .weights = o.whole("weights", {kBlocks, kKvHeads, kBlock}),
                                        .dkeys = o.whole("dkeys", pools),
                                        .dvalues = o.whole("dvalues", pools),
                                        .dk = key_rows(o, "dk", DType::f32),
                                        .dv = key_rows(o, "dv", DType::f32),
                                        .dpositions = o.whole("dpositions", {kBlocks, kKvHeads, kBlock}),
                                        .dquery = o.whole("dquery", pools),
                                        .rows = {{0, kTokens, 0, 0}}});
}

constexpr SampledRows kSamples{.count = kTokens / 2, .rate = 2, .shift = 1, .kv_heads = kKvHeads};
Tensor sample_rows(BorderOperands& o, const std::string& name, DType t) {
  return o.rows(name, {kSamples.count, kHeads, kDim}, t);
}
void gather_samples(BorderOperands& o, DType t) {
  o.run(gather_samples_kernel, {query_rows(o, "src", t), sample_rows(o, "dst", t), kSamples});
}
void add_samples(BorderOperands& o, DType) {
  o.run(add_samples_kernel, {sample_rows(o, "src", DType::f32), query_rows(o, "dst", DType::f32), kSamples});
}
void merge_samples(BorderOperands& o, DType) {
  o.run(merge_samples_kernel,
        {query_rows(o, "out", DType::f32), o.whole("lse", {kHeads, kTokens}), sample_rows(o, "part", DType::f32),
         o.whole("part_lse", {kHeads, kSamples.count}), kSamples});
}

}  // namespace

std::vector<BorderOp> ops() {
  return {{"attention", "", attention},
          {"attention", "dilated", attention_dilated},
          {"attention", "carry", attention_with_carry},
          {"attention", "selected", attention_selected},
          {"attention_backward", "", attention_backward},
          {"attention_backward", "dilated", attention_backward_dilated},
          {"attention_backward", "selected", attention_backward_selected},
          {"attention_decode", "", attention_decode},
          {"attention_decode", "fp8", attention_decode_fp8},
          {"gated_decode", "", gated_decode},
          {"attention_entropy", "", attention_entropy},
          {"attention_sink", "", attention_sink},
          {"attention_sink_backward", "", attention_sink_backward},
          {"block_select", "", block_select},
          {"block_select", "scores", block_select_by_scores},
          {"selected_pairs", "", selected_pairs},
          {"block_mass", "", block_mass},
          {"index_scores", "", index_scores},
          {"index_scores_backward", "", index_scores_backward_by_tokens},
          {"index_scores_backward", "scores", index_scores_backward_by_scores},
          {"index_distances_backward", "", index_distances_backward},
          {"index_loss", "", index_loss},
          {"pool_gate", "", pool_gate},
          {"block_pool", "", block_pool},
          {"block_pool_backward", "", block_pool_backward},
          {"weighted_pool", "", weighted_pool},
          {"weighted_pool_backward", "", weighted_pool_backward},
          {"gather_samples", "", gather_samples},
          {"add_samples", "", add_samples},
          {"merge_samples", "", merge_samples}};
}

}  // namespace ring::test::border_attention
