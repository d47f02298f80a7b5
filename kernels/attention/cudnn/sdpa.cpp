#include "kernels/attention/cudnn/sdpa.h"

#include <cudnn_frontend.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "core/check.h"
#include "core/cuda/launches.h"

namespace ring::cudnn {

struct Plan::Graph {
  cudnn_frontend::graph::Graph graph;
};

namespace {

namespace frontend = cudnn_frontend;
using frontend::DataType_t;
using Attributes = frontend::graph::Tensor_attributes;
using TensorPtr = std::shared_ptr<Attributes>;

enum Id : std::int64_t { kQ = 1, kK, kV, kOut, kStats, kDout, kDq, kDk, kDv };

void check(frontend::error_t error, const char* what) {
  if (error.is_bad()) fail("cuDNN attention: ", what, ": ", error.get_message());
}

Attributes describe(const Problem& p, Id id, const char* name, View view) {
  const bool of_keys = id == kK || id == kV || id == kDk || id == kDv;
  Attributes t;
  t.set_name(name)
      .set_uid(id)
      .set_data_type(DataType_t::BFLOAT16)
      .set_dim({p.batch, of_keys ? p.kv_heads : p.heads, of_keys ? p.keys : p.queries, p.dim})
      .set_stride({view.sequence, view.head, view.token, 1});
  return t;
}

Attributes describe_stats(const Problem& p) {
  Attributes t;
  t.set_name("stats")
      .set_uid(kStats)
      .set_data_type(DataType_t::FLOAT)
      .set_dim({p.batch, p.heads, p.queries, 1})
      .set_stride({p.stats_sequence, p.stats_head, 1, 1});
  return t;
}

// Declares a computed tensor as an output of the graph, with the wanted uid, type, shape and strides.
void give_out(const TensorPtr& made, const Attributes& wanted) {
  made->set_output(true)
      .set_uid(wanted.get_uid())
      .set_data_type(wanted.get_data_type())
      .set_dim(wanted.get_dim())
      .set_stride(wanted.get_stride());
}

template <class Options>
Options options(const Problem& p, const char* name) {
  Options o;
  o.set_name(name).set_attn_scale(p.scale);
  if (p.causal) o.set_diagonal_alignment(frontend::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
  if (p.window > 0) o.set_diagonal_band_left_bound(p.window);  // a pair is kept if column + window > row
  return o;
}

void add_forward(frontend::graph::Graph& graph, const Problem& p) {
  const TensorPtr q = graph.tensor(describe(p, kQ, "q", p.q));
  const TensorPtr k = graph.tensor(describe(p, kK, "k", p.k));
  const TensorPtr v = graph.tensor(describe(p, kV, "v", p.v));
  auto how = options<frontend::graph::SDPA_attributes>(p, "attention");
  how.set_generate_stats(true);
  const auto made = graph.sdpa(q, k, v, how);
  give_out(made[0], describe(p, kOut, "out", p.out));
  give_out(made[1], describe_stats(p));
}

void add_backward(frontend::graph::Graph& graph, const Problem& p) {
  const TensorPtr q = graph.tensor(describe(p, kQ, "q", p.q));
  const TensorPtr k = graph.tensor(describe(p, kK, "k", p.k));
  const TensorPtr v = graph.tensor(describe(p, kV, "v", p.v));
  const TensorPtr out = graph.tensor(describe(p, kOut, "out", p.out));
  const TensorPtr dout = graph.tensor(describe(p, kDout, "dout", p.dout));
  const TensorPtr stats = graph.tensor(describe_stats(p));
  auto how = options<frontend::graph::SDPA_backward_attributes>(p, "attention_backward");
  how.set_deterministic_algorithm(p.deterministic);
  const auto made = graph.sdpa_backward(q, k, v, out, dout, stats, how);
  give_out(made[0], describe(p, kDq, "dq", p.dq));
  give_out(made[1], describe(p, kDk, "dk", p.dk));
  give_out(made[2], describe(p, kDv, "dv", p.dv));
}

}  // namespace

Plan::Plan(const Problem& p, void* handle) : graph_(std::make_unique<Graph>()) {
  frontend::graph::Graph& graph = graph_->graph;
  graph.set_io_data_type(DataType_t::BFLOAT16)
      .set_intermediate_data_type(DataType_t::FLOAT)
      .set_compute_data_type(DataType_t::FLOAT);
  p.backward ? add_backward(graph, p) : add_forward(graph, p);
  // Takes the first of the heuristic's plans that works. Nothing is timed, so a run starts fast and
  // always chooses the same plan.
  check(graph.build(static_cast<cudnnHandle_t>(handle), {frontend::HeurMode_t::A}), "no plan");
  std::int64_t bytes = 0;
  check(graph.get_workspace_size(bytes), "no workspace size");
  workspace_bytes_ = static_cast<std::size_t>(bytes);
}

Plan::~Plan() = default;

void Plan::run(const Operands& o, void* workspace, void* handle) const {
  std::unordered_map<Attributes::uid_t, void*> pointers = {
      {kQ, o.q}, {kK, o.k}, {kV, o.v}, {kOut, o.out}, {kStats, o.stats}};
  if (o.dq) pointers.insert({{kDout, o.dout}, {kDq, o.dq}, {kDk, o.dk}, {kDv, o.dv}});
  const frontend::error_t error = graph_->graph.execute(static_cast<cudnnHandle_t>(handle), pointers, workspace);
  if (error.is_bad()) cuda::check_device();
  check(error, "the call failed");
}

}  // namespace ring::cudnn
