#pragma once
// One case of an op, run by the tests (against its fp64 oracle, finite differences, accumulation) and by bench/ops.

#include <functional>
#include <string>
#include <vector>

#include "autograd/ops.h"

namespace ring::test {

using Values = std::vector<double>;

struct Input {
  std::string name;
  Shape shape;
  Values values;  // if empty: random_values() of the case's and the input's name, made when the case runs
  bool differentiable = true;
  DType dtype = DType::f32;  // f32 or bf16; i32 inputs are never differentiable
  bool half = true;          // if false, in_bf16() leaves it in f32
  double scale = 1;          // scale of random values
};

struct OpCase {
  std::string op, name;  // "rms_norm", "N37_C64"
  std::vector<Input> inputs;
  // Returns the op's outputs in fp64 from the inputs' values. Written to be obviously right.
  std::function<std::vector<Values>(const std::vector<Values>&)> oracle;
  // Runs the op under test. Inputs arrive in order, with slots if they are differentiable. Outputs without a slot are
  // compared only in the forward pass.
  std::function<std::vector<Var>(Run&, const std::vector<Var>&)> run;
  double tolerance = 1e-5;               // relative L2 error against the oracle
  double grad_tolerance = 1e-4;          // relative, against finite differences of the oracle
  double flops = 0, backward_flops = 0;  // per call
  double bytes = 0, backward_bytes = 0;  // minimum memory traffic: each input read once, each output written once
  bool root = false;                     // the op is a loss head: backward takes no seed
  double root_scale = 1;                 // gradients of a root are those of root_scale * outputs[0]
  bool bench = false;                    // large enough to be worth timing
  bool half = true;                      // if false: in bf16 its gradient is not determined by the inputs
};

// Returns the case with its differentiable inputs in bf16, and the tolerances for bf16.
OpCase in_bf16(OpCase);
inline bool is_float(DType t) { return t == DType::f32 || t == DType::bf16; }

// Returns fixed random values: uniform in [-scale, scale], with a seed from the name.
Values random_values(const std::string& name, std::int64_t n, double scale = 1.0);

// Returns the inputs' values as the op sees them: rounded to the input's type.
std::vector<Values> input_values(const OpCase&);
// Returns new tensors with these values, each with its own slot if it is differentiable.
std::vector<Var> make_inputs(const OpCase&, const std::vector<Values>&, const ExecContext&);
Tensor make_tensor(const Shape&, DType, const Values&, const ExecContext&);
Values read_values(const Tensor&);                      // needs a contiguous tensor on the CPU
Values read_values(const Tensor&, const ExecContext&);  // reads a tensor of any device

// Every tests/cases/<op>.cpp adds its cases at load time through one AddCases object.
std::vector<std::vector<OpCase> (*)()>& case_list_makers();
struct AddCases {
  explicit AddCases(std::vector<OpCase> (*make)()) { case_list_makers().push_back(make); }
};
std::vector<OpCase> all_cases();

}  // namespace ring::test
