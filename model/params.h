#pragma once
// Parameters: declared by the layers, then allocated together in one flat buffer (and one for gradients), so that the
// optimizer, the gradient norm and the reducer each work on a few long ranges.

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "autograd/tape.h"

namespace ring {

// How a parameter starts. The value of an element depends only on (seed, logical name, its index in the logical
// tensor).
struct Init {
  enum class Kind : std::uint8_t { zeros, ones, normal } kind = Kind::zeros;
  float std = 0;
};

// A logical parameter: some rows of the tensor that holds it. Its name is its checkpoint key.
struct LogicalParam {
  std::string name;
  std::int64_t first_row = 0, rows = 0;
  Init init;
};

// One tensor of the model with its gradient slot. Logical parameters that one product reads together (q, k, v; gate and
// up) lie in one Param below each other.
struct Param {
  std::vector<LogicalParam> parts;
  Shape shape;              // in memory; rows beyond the last part are padding, always zero
  bool decay = false;       // weight decay: matrices only
  std::int64_t offset = 0;  // first element in the flat buffers
  Var var;                  // value and gradient slot, bound by Parameters::allocate

  // A logical parameter's rows of a flat buffer of the same layout (values, gradients, moments).
  Tensor part_of(const Tensor& flat, const LogicalParam& part) const;
};

class Parameters {
 public:
  // References stay valid. `columns` 0 makes a vector. Error: a name given twice.
  Param& add(std::vector<LogicalParam> parts, std::int64_t columns, std::int64_t padded_rows = 0);

  // Allocates values and gradients, binds every slot, and fills the values.
  void allocate(const Context&, std::uint64_t seed);
  void start_step();  // the next gradient write of every slot stores, later ones add

  // Vectors first, then matrices, each in order of declaration: gradients become complete from the back to the front.
  const std::vector<Param*>& layout() const { return layout_; }
  std::int64_t matrices_begin() const { return matrices_begin_; }  // weight decay applies from here on
  std::int64_t count() const;                                      // logical elements, without padding
  std::vector<Param*> below(const std::string& prefix);            // in order of declaration

  Tensor values, gradients;  // flat f32

 private:
  std::deque<Param> params_;
  std::vector<Param*> layout_;
  std::int64_t matrices_begin_ = 0;
};

// Adds parameters below a dotted prefix.
struct Scope {
  Parameters& params;
  std::string prefix;
  Scope child(const std::string& name) const { return {params, prefix + name + "."}; }
  std::string operator()(const std::string& name) const { return prefix + name; }
};

}  // namespace ring
