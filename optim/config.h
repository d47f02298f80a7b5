#pragma once
// Settings of the optimizer: the sections `optimizer` and `schedule`.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/fields.h"
#include "core/steps.h"

namespace ring {

// Tensors kept in host memory between updates. Each value includes those before it.
// states: the optimizer's states. all: also the master values, if kernels read a copy of them in a different type.
// weights: also the weights that kernels read; each part of the model is copied to the device before it runs.
enum class StateOffload : std::uint8_t { none, states, all, weights };
constexpr std::string_view to_string(StateOffload o) {
  constexpr std::string_view names[] = {"none", "states", "all", "weights"};
  return names[static_cast<std::size_t>(o)];
}

// Types of optimizer states: 8 bits are codes with a scale for each block of elements (kernels/fp8_moments.h).
enum class MomentType : std::uint8_t { f32, bf16, fp8 };
constexpr std::string_view to_string(MomentType t) {
  return t == MomentType::f32 ? "f32" : t == MomentType::bf16 ? "bf16" : "fp8";
}

constexpr std::int64_t kAutoStaging = -1;  // optimizer.offload_staging_bytes: auto

// Parameters with their own update settings. Settings that are not set have the values of `optimizer`.
struct GroupConfig {
  std::vector<std::string> match;  // patterns of parameter names
  std::optional<std::string> kind;
  std::optional<double> lr, weight_decay;
  bool frozen = false;
  void fields(Fields&);
  void validate(std::vector<SettingProblem>& errors) const;
};

struct MuonConfig {
  double momentum = 0.95;
  bool nesterov = true;
  std::int64_t iterations = 5;
  void fields(Fields&);
};

struct OptimizerConfig {
  std::string kind = "adamw";
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;
  MuonConfig muon;
  DType master = DType::f32;
  MomentType moments = MomentType::f32;
  DType gradients = DType::f32;
  StateOffload offload = StateOffload::none;
  std::int64_t offload_chunk_bytes = std::int64_t{64} << 20;
  std::int64_t offload_staging_bytes = kAutoStaging;
  std::vector<GroupConfig> groups;  // a parameter gets the last entry that matches it
  void fields(Fields&);
};

enum class ScheduleKind : std::uint8_t { constant, cosine, linear, wsd };

struct ScheduleConfig {
  ScheduleKind kind = ScheduleKind::cosine;
  std::int64_t warmup_steps = 100;
  std::int64_t decay_steps = 0;
  double final_lr = 0.1;
  double final_weight_decay = 1;
  void fields(Fields&);
  void validate(std::vector<SettingProblem>& errors) const;
};

}  // namespace ring
