#pragma once
// Formats: number formats, such as FP8, in which linear layers compute their three GEMMs (train.linears). Without a
// format a layer computes in the type of its input.

#include <string>

#include "autograd/tape.h"

namespace ring {

class TrainingState;
class WeightEncoding;
struct Param;

// A format, shared by all linear layers of the model that it is bound to.
class LinearFormat {
 public:
  LinearFormat() = default;
  virtual ~LinearFormat() = default;
  LinearFormat(const LinearFormat&) = delete;
  LinearFormat& operator=(const LinearFormat&) = delete;

  // Returns x w^T + b + residual [N,M] for x [N,K] and the weight w [M,K]; bias and residual may be none. Under tensor
  // parallelism w is this process's shard (Param::placement). With Cut::inputs, x has this process's channels, and the
  // result is one term of the sum over the processes; otherwise the result has this process's channels.
  virtual Var apply(Run&, const Var& x, const Param& weight, const Var& bias, const Var& residual) const = 0;

  // Returns apply() for x = swiglu(gate_up), with gate_up [N,2K]. Formats that can write swiglu's result in the type of
  // their operands override it.
  virtual Var apply_to_swiglu(Run&, const Var& gate_up, const Param& weight, const Var& bias,
                              const Var& residual) const;

  // Makes apply_to_swiglu() round gate_up to FP8 and save it so (train.swiglu_inputs: fp8). Returns false if the format
  // cannot do that.
  virtual bool round_swiglu_inputs() { return false; }

  // Returns the reason why a weight, not yet sharded, cannot have this format among `slices` processes of tensor
  // parallelism, such as "has 24 outputs, expected a multiple of 16"; empty if it can.
  virtual std::string misfit(const Param& /*weight*/, int /*slices*/) const { return ""; }
  // Throws Error naming train.linears if the device or the precision does not support the format.
  virtual void check_device(const ExecContext&) const {}
  // Announces with `true` that no weight changes until the call with `false`. Meanwhile the format may keep values that
  // it computed from weights. A training step calls it if it has all weights in memory (unlike ZeRO-3).
  virtual void hold_weights(bool /*hold*/) {}
  // Returns the state that training changes, such as a history of scales; null if there is none.
  virtual TrainingState* state() { return nullptr; }
  // Returns the encoding in which ZeRO-3 gathers the weights of this format, and in which frozen weights are stored;
  // null if the values themselves are gathered and stored.
  virtual const WeightEncoding* encoding() const { return nullptr; }
};

}  // namespace ring
