#include "parallel/parallelize.h"

#include "parallel/compression.h"
#include "parallel/stages.h"

namespace ring {

namespace {

// Returns the cp ranks, with the groups by node if the schedule needs these groups.
ContextRanks context_ranks(Mesh& mesh, ContextSchedule schedule, const RingOptions& ring) {
  if (schedule != ContextSchedule::hybrid) return mesh.axis("cp");
  const Mesh::NodeGroups groups = mesh.groups_by_node("cp", ring.per_node);
  return {mesh.axis("cp"), groups.node, groups.between_nodes};
}

}  // namespace

// Context parallelism: in attention, keys and values meet the queries of other ranks by the plan's schedule; all other
// computation is per token. Ranks of tp shard a rank's tokens evenly, so its slices of chunks are multiples of tp.
ContextBatches parallelize_context(Mesh& mesh, const ParallelPlan& plan, const ModelConfig& model,
                                   std::size_t host_room, const ExecContext& ctx) {
  if (plan.in_chunks)
    return {plan.cp_layout, ctx, host_room, &mesh.axis("cp"), plan.tp, micro_batches_of_keys(plan, mesh.coord("pp"))};
  const RingOptions ring = plan.config.ring_options(mesh.nodes_along("cp"));
  check_ranks_on_node(plan, model, ring.per_node);
  return {context_ranks(mesh, plan.config.cp_schedule, ring), plan.cp_layout, plan.config.cp_schedule, ring};
}

CompressionRanks compression_ranks(Mesh& mesh) {
  Communicator& all = mesh.group(kDataAxes);
  const std::vector<int> nodes = mesh.nodes_along(kDataAxes);
  const int per_node = ranks_per_node(nodes);
  const bool first_slice = mesh.coord("tp") == 0;
  if (per_node == 1 || per_node == all.size()) return {nullptr, &all, first_slice};
  const Mesh::NodeGroups groups = mesh.groups_by_node(kDataAxes, per_node);
  return {&groups.node, &groups.between_nodes, first_slice};
}

// Ranks of dp process different sequences, ranks of cp different tokens: for parameters, both are replicas.
std::unique_ptr<DataParallel> parallelize_data(Model& model, Mesh& mesh, const ParallelPlan& plan,
                                               const ParameterOptions& o, const ExecContext& ctx) {
  const CompressionRanks compression = coding_of(plan.config) ? compression_ranks(mesh) : CompressionRanks{};
  return std::make_unique<DataParallel>(model, mesh.group(kDataAxes), compression, mesh.axis("tp"), plan.config,
                                        o.bucket_bytes, o.types, o.seed, ctx);
}

void divide_model(Model& model, Mesh& mesh, const ParallelPlan& plan) {
  if (plan.pp > 1) model.hold_stage({parts_of_stage(model.config(), plan, mesh.coord("pp")), &mesh.axis("pp")});
  model.shard({mesh.coord("tp"), mesh.degree("tp")});
}

Parallelized parallelize(Model& model, Mesh& mesh, const ParallelPlan& plan, const ParameterOptions& options,
                         const ExecContext& ctx) {
  divide_model(model, mesh, plan);
  ContextBatches context = parallelize_context(mesh, plan, model.config(), options.host_room, ctx);
  return {std::move(context), parallelize_data(model, mesh, plan, options, ctx)};
}

}  // namespace ring
