#include "parallel/parallelize.h"

#include "model/patterns.h"

namespace ring {
namespace {

// Column-parallel in the words of Megatron: x [N/tp,in] is gathered, y [N,out/tp] stays where it is computed.
void cut_outputs(Parameters& params, Linear& linear) {
  params.cut(*linear.weight, Cut::outputs);
  if (linear.bias) params.cut(*linear.bias, Cut::outputs);
}

// Row-parallel: x [N,in/tp] is where it was computed; the sums over the slices are scattered, y [N/tp,out]. The bias is
// added once, to the sum.
void cut_inputs(Parameters& params, Linear& linear) { params.cut(*linear.weight, Cut::inputs); }

void cut_attention(Parameters& params, AttentionLayer& attention, const ModelConfig& c, const Pattern& pattern) {
  const int slices = params.slice().size;
  cut_outputs(params, attention.qkv());  // whole heads
  const std::int64_t kv_heads = c.kv_heads / slices;
  attention.take_heads(c.heads / slices, {params.slice().rank * kv_heads, kv_heads}, pattern);
  if (attention.pool_gate()) cut_outputs(params, *attention.pool_gate());   // by head
  if (attention.pooling()) params.cut(*attention.pooling(), Cut::outputs);  // whole heads of each size
  cut_inputs(params, attention.out());
}

void cut_mlp(Parameters& params, FeedForward& mlp) {
  cut_outputs(params, mlp.in());  // gate and up each by itself
  cut_inputs(params, mlp.out());
}

}  // namespace

// Between sublayers each process holds its rows of the residual stream (sequence parallelism): norms and dropout work
// on them, and the gradients of what every slice holds whole are summed over the slices.
void parallelize_tensor(Decoder& model, Slice slice) {
  if (slice.size == 1) return;
  Parameters& params = model.parameters();
  const ModelConfig& c = model.config();
  params.set_slice(slice);
  for (Param* table : model.vocab_tables()) params.cut(*table, Cut::outputs);  // rows by token; loss in slices
  const std::int64_t kv_heads = c.kv_heads / slice.size;
  const std::vector<Pattern> patterns = patterns_of(c, {slice.rank * kv_heads, kv_heads});
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    DecoderBlock& block = model.blocks()[i];
    cut_attention(params, block.attention(), c, patterns[i]);
    cut_mlp(params, block.mlp());
  }
}

// Keys and values meet the queries of other ranks inside of attention, by the plan's schedule; all else is by token.
ContextBatches parallelize_context(Mesh& mesh, const ParallelPlan& plan) {
  return {mesh.axis("cp"), plan.cp_layout, plan.config.cp_schedule, plan.config.ring(mesh.nodes_along("cp"))};
}

// Ranks of dp have other sequences and ranks of cp other tokens: for parameters both are replicas.
std::unique_ptr<DataParallel> parallelize_data(Decoder& model, Mesh& mesh, const ParallelPlan& plan,
                                               const ParameterOptions& o, const ExecContext& ctx) {
  return std::make_unique<DataParallel>(model, mesh.group(kDataAxes), mesh.axis("tp"), plan.config, o.bucket_bytes,
                                        o.types, o.seed, ctx);
}

Parallelized parallelize(Decoder& model, Mesh& mesh, const ParallelPlan& plan, const ParameterOptions& options,
                         const ExecContext& ctx) {
  parallelize_tensor(model, {mesh.coord("tp"), mesh.degree("tp")});
  ContextBatches context = parallelize_context(mesh, plan);
  return {std::move(context), parallelize_data(model, mesh, plan, options, ctx)};
}

}  // namespace ring
