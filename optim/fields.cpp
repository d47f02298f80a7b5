// Fields of the sections `optimizer` and `schedule`.
#include "optim/config.h"

#include "core/byte_size.h"
#include "core/setting_problem.h"
#include "optim/kinds.h"

namespace ring {

namespace {
constexpr std::int64_t kMaxChunkBytes = std::int64_t{1} << 40, kMaxStagingBytes = kMaxChunkBytes;
constexpr std::size_t kMaxGroups = 256, kMaxPatterns = 1024;
constexpr double kMinRate = 1e-20, kMaxRate = 1e30;

Choices<std::string> kinds() {
  Choices<std::string> all;
  for (const auto& [name, kind] : optimizer_kinds()) all.names.emplace_back(name, name);
  return all;
}

}  // namespace

void GroupConfig::fields(Fields& f) {
  f("match", match, "names of parameters as in checkpoints; * matches any text, ? any character", non_empty(),
    at_most_items(kMaxPatterns));
  f("kind", kind, "overrides optimizer.kind", kinds());
  f("lr", lr, "overrides optimizer.lr; follows the same schedule", in_range(kMinRate, kMaxRate));
  f("weight_decay", weight_decay, "overrides optimizer.weight_decay for all matched parameters, including vectors",
    in_range(0, 1000));
  f("frozen", frozen, "keep the parameters fixed: no gradients, no optimizer states");
}

void GroupConfig::validate(std::vector<SettingProblem>& errors) const {
  if (frozen && (kind || lr || weight_decay))
    errors.push_back("frozen: frozen parameters cannot have kind, lr or weight_decay. Leave these out");
}

void MuonConfig::fields(Fields& f) {
  f("momentum", momentum, "decay of the momentum", in_range(0, 0.9999));
  f("nesterov", nesterov, "use Nesterov momentum, which looks a step ahead");
  f("iterations", iterations, "Newton-Schulz iterations that orthogonalise an update", in_range(1, 100));
}

void OptimizerConfig::fields(Fields& f) {
  f("kind", kind, "update rule: adamw, or muon for the matrices of blocks and adamw for the others", kinds(),
    docs_page("optimizers.md#muon"));
  f("lr", lr, "peak learning rate", in_range(kMinRate, kMaxRate));
  f("beta1", beta1, "decay of the first moment", in_range(0, 0.9999));
  f("beta2", beta2, "decay of the second moment", in_range(0, 0.99999));
  f("eps", eps, "epsilon added to the root of the second moment", in_range(1e-30, 1));
  f("weight_decay", weight_decay, "decoupled decay, on matrices only", in_range(0, 1000));
  f("clip", clip, "maximum global gradient norm; 0 = no clipping", in_range(0, 1e30));
  f("muon", muon, "settings of kind: muon");
  const auto types = choices<DType>({{"fp32", DType::f32}, {"bf16", DType::bf16}});
  f("master", master, "type of the weights that the optimizer updates; bf16 (GPUs) rounds stochastically", types);
  f("moments", moments, "type of moments and momentum; bf16 (GPUs) and fp8 round stochastically",
    choices<MomentType>({{"fp32", MomentType::f32}, {"bf16", MomentType::bf16}, {"fp8", MomentType::fp8}}),
    docs_page("optimizers.md#types-of-the-states"));
  f("gradients", gradients, "type of the gradient buffers; bf16 only on GPUs", types);
  f("offload", offload, "kept in host memory; states: moments, all: also masters, weights: also all weights",
    choices<StateOffload>({{"none", StateOffload::none},
                           {"states", StateOffload::states},
                           {"all", StateOffload::all},
                           {"weights", StateOffload::weights}}),
    docs_page("memory.md#states-on-the-host"));
  f("offload_chunk_bytes", offload_chunk_bytes,
    "with offload: bytes copied at a time; the device holds at least three such chunks",
    bytes_in_range(1024, kMaxChunkBytes));
  f("offload_staging_bytes", offload_staging_bytes,
    "device memory for copies that overlap steps; 0 = three chunks; auto = what steps leave free",
    bytes_in_range(0, kMaxStagingBytes), word("auto", kAutoStaging), docs_page("memory.md#states-on-the-host"));
  f("groups", groups, "parameters with different update settings; if several entries match one, the last applies",
    at_most_items(kMaxGroups));
}

void ScheduleConfig::fields(Fields& f) {
  f("kind", kind, "learning rate after warm-up: constant, cosine, linear, or wsd (constant, then linear)",
    choices<ScheduleKind>({{"constant", ScheduleKind::constant},
                           {"cosine", ScheduleKind::cosine},
                           {"linear", ScheduleKind::linear},
                           {"wsd", ScheduleKind::wsd}}));
  f("warmup_steps", warmup_steps, "steps of linear warm-up from 0", in_range(0, kMaxSteps));
  f("decay_steps", decay_steps, "wsd: length of the final decay; 0 = a fifth of the run", in_range(0, kMaxSteps));
  f("final_lr", final_lr, "final learning rate, as a fraction of optimizer.lr", in_range(0, 1));
  f("final_weight_decay", final_weight_decay,
    "final weight decay as a fraction of optimizer.weight_decay, along the learning rate's curve", in_range(0, 1000),
    docs_page("training.md#learning-rate-and-weight-decay"));
}

void ScheduleConfig::validate(std::vector<SettingProblem>& errors) const {
  if (kind == ScheduleKind::constant && final_weight_decay != 1)
    errors.push_back(str("final_weight_decay: ", final_weight_decay,
                         " is never reached with schedule.kind: constant. Set it to cosine, linear or wsd"));
  if (kind != ScheduleKind::wsd && decay_steps)
    errors.push_back(unused_setting(str("decay_steps: ", decay_steps,
                                        " applies to kind: wsd; other kinds decay until the run ends or not at all. "
                                        "Leave it out (0), or set schedule.kind: wsd")));
}

}  // namespace ring
