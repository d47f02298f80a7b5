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
  f("match", match, "names of parameters, as checkpoints have them, with * and ? for any text and any character",
    non_empty(), at_most_items(kMaxPatterns));
  f("kind", kind, "in place of optimizer.kind", kinds());
  f("lr", lr, "in place of optimizer.lr; the schedule applies to it alike", in_range(kMinRate, kMaxRate));
  f("weight_decay", weight_decay, "in place of optimizer.weight_decay, on all that is named, vectors included",
    in_range(0, 1000));
  f("frozen", frozen, "they keep their values: no gradients, no states");
}

void GroupConfig::validate(std::vector<SettingProblem>& errors) const {
  if (frozen && (kind || lr || weight_decay))
    errors.push_back("frozen: what keeps its values has no kind, lr or weight_decay: leave them out");
}

void MuonConfig::fields(Fields& f) {
  f("momentum", momentum, "decay of the momentum", in_range(0, 0.9999));
  f("nesterov", nesterov, "look a step ahead, as Nesterov's momentum does");
  f("iterations", iterations, "Newton-Schulz iterations that make an update orthogonal", in_range(1, 100));
}

void OptimizerConfig::fields(Fields& f) {
  f("kind", kind,
    "how weights are updated: AdamW (Loshchilov and Hutter 2019), or Muon (Jordan 2024) for the matrices of blocks and "
    "AdamW for all others",
    kinds());
  f("lr", lr, "peak learning rate", in_range(kMinRate, kMaxRate));
  f("beta1", beta1, "decay of the first moment", in_range(0, 0.9999));
  f("beta2", beta2, "decay of the second moment", in_range(0, 0.99999));
  f("eps", eps, "added to the root of the second moment", in_range(1e-30, 1));
  f("weight_decay", weight_decay, "decoupled decay, on matrices only", in_range(0, 1000));
  f("clip", clip, "largest global gradient norm; 0 = no clipping", in_range(0, 1e30));
  f("muon", muon, "what kind: muon adds");
  const auto types = choices<DType>({{"fp32", DType::f32}, {"bf16", DType::bf16}});
  f("master", master, "type of the weights that are updated; bf16 (GPUs) rounds stochastically", types);
  f("moments", moments, "type of moments and momentum; bf16 (GPUs) rounds stochastically", types);
  f("gradients", gradients, "type of the gradient buffers; bf16: GPUs only", types);
  f("offload", offload,
    "what is kept in host memory and comes to the device for its update alone, with the same bits: none; states, the "
    "moments; all, also the master values, where kernels read a copy of them (optimizer.master fp32, "
    "train.precision bf16)",
    choices<StateOffload>(
        {{"none", StateOffload::none}, {"states", StateOffload::states}, {"all", StateOffload::all}}));
  f("offload_chunk_bytes", offload_chunk_bytes,
    "with offload: how much travels at a time; the device holds at least three such chunks",
    in_bytes(1024, kMaxChunkBytes));
  f("offload_staging_bytes", offload_staging_bytes,
    "with offload: how much the device holds of what travels: so many bytes come before the update and leave after it, "
    "while steps compute; the rest is waited for; 0 = three chunks; auto = what a step is predicted to leave of "
    "train.memory_budget",
    in_bytes(0, kMaxStagingBytes), word("auto", kAutoStaging));
  f("groups", groups, "parameters with an update of their own; of several entries that name one, the last holds",
    at_most_items(kMaxGroups));
}

void ScheduleConfig::fields(Fields& f) {
  f("kind", kind, "learning rate after the warm-up: kept, cosine or linear to final_lr, or kept and then linear (wsd)",
    choices<ScheduleKind>({{"constant", ScheduleKind::constant},
                           {"cosine", ScheduleKind::cosine},
                           {"linear", ScheduleKind::linear},
                           {"wsd", ScheduleKind::wsd}}));
  f("warmup_steps", warmup_steps, "steps of linear warm-up from 0", in_range(0, kMaxSteps));
  f("decay_steps", decay_steps, "wsd: length of the final decay; 0 = a fifth of the run", in_range(0, kMaxSteps));
  f("final_lr", final_lr, "last learning rate, as a fraction of optimizer.lr", in_range(0, 1));
  f("final_weight_decay", final_weight_decay,
    "last weight decay, as a fraction of optimizer.weight_decay, reached along the curve of the learning rate; 0 fades "
    "it out, 10 raises it tenfold",
    in_range(0, 1000));
}

void ScheduleConfig::validate(std::vector<SettingProblem>& errors) const {
  if (kind == ScheduleKind::constant && final_weight_decay != 1)
    errors.push_back(str("final_weight_decay: ", final_weight_decay,
                         " is never reached with schedule.kind: constant: choose cosine, linear or wsd"));
  if (kind != ScheduleKind::wsd && decay_steps)
    errors.push_back(unused_setting(str("decay_steps: ", decay_steps,
                                        " belongs to kind: wsd; all others decay until the run ends, or not at all: "
                                        "leave it out (0), or set schedule.kind: wsd")));
}

}  // namespace ring
