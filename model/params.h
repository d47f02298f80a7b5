#pragma once
// Parameters: declared by the layers, then allocated together in one flat buffer (and one for gradients), so that the
// optimizer, the gradient norm and the reducer each work on a few long ranges.

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_set>
#include <vector>

#include "autograd/tape.h"

namespace ring {

// Parameters start on multiples of 16 elements: a cache line, and the alignment that vector kernels like.
inline constexpr std::int64_t kParamAlign = 16;
constexpr std::int64_t param_aligned(std::int64_t n) { return (n + kParamAlign - 1) / kParamAlign * kParamAlign; }

// How a parameter starts. The value of an element depends only on (seed, logical name, its index in the logical
// tensor).
struct Init {
  enum class Kind : std::uint8_t { zeros, ones, normal } kind = Kind::zeros;
  float std = 0;
};

// Which part of the cut parameters a process holds (tensor parallelism).
struct Slice {
  int rank = 0, size = 1;
};

// The axis along which tensor parallelism cuts a parameter.
enum class Cut : std::uint8_t {
  none,     // every process holds the whole
  outputs,  // rows of each part: column-parallel in Megatron
  inputs,   // columns: row-parallel in Megatron
  parts,    // whole parts, such as the experts of a layer
};

// Where the elements of a parameter lie; the layer that declares the parameter says it.
struct Placement {
  Cut cut = Cut::none;
  std::int64_t row_multiple = 0;  // > 0: the rows of each slice are padded to a multiple of it; 0: no padding
};

// A logical parameter: some rows of the tensor that holds it. Its name is its checkpoint key. Declared as a whole;
// `rows` is what this process holds of it (0: nothing), the region [start, start + its shape) of the whole.
struct LogicalParam {
  std::string name;
  std::int64_t first_row = 0, rows = 0;
  Init init;
  Shape whole{}, start{};
  // How it is updated (optim/groups.h):
  std::size_t group = 0;    // of the settings: 0, or 1 + the number of an entry of optimizer.groups
  bool frozen = false;      // its values never change
  double update_flops = 0;  // of one update, where it is made of the whole matrix; 0: of each element by itself
};

// One tensor of the model with its gradient slot. Logical parameters that one product reads together (q, k, v; gate and
// up) lie in one Param below each other.
struct Param {
  std::vector<LogicalParam> parts;
  Shape shape;  // in memory; rows beyond the last part are padding, always zero
  Placement placement;
  bool decay = false;       // weight decay: matrices only
  bool table = false;       // rows are looked up (or the head's): each stands alone, and backward needs no values
  std::int64_t offset = 0;  // first element in the flat buffers
  Var var;                  // weight and gradient slot, bound by Parameters::allocate; frozen: no slot

  bool frozen() const;  // all of its parts are

  // A logical parameter's rows of a flat buffer of the same layout (values, gradients, moments).
  Tensor part_of(const Tensor& flat, const LogicalParam& part) const;
};

// The parameters of a layer, of a block or of a part of the model.
using ParamList = std::vector<Param*>;
ParamList& operator+=(ParamList&, const ParamList& more);

// In what type a model's numbers are kept. With master and weights alike there is one buffer for both.
struct ParamTypes {
  DType master = DType::f32;     // what the optimizer updates and checkpoints hold
  DType weights = DType::f32;    // what kernels read
  DType gradients = DType::f32;  // the flat buffer that backward adds to
  bool trainable = true;         // false: no gradients
  bool master_on_host = false;   // the master copy lives in host memory, where there is one

  bool copies() const { return weights != master; }
};

class Parameters {
 public:
  // References stay valid. Every process holds the whole until shard() is called. `columns` 0 makes a vector. Throws
  // Error if a name is given twice.
  Param& add(std::vector<LogicalParam> parts, std::int64_t columns, const Placement& = {});

  // Tensor parallelism: keeps this process's slice of every parameter, by the parameters' placements. Called before
  // lay_out(). Throws Error if a parameter does not divide.
  void shard(Slice);
  const Slice& slice() const { return slice_; }

  // In order of declaration.
  std::vector<Param*> declared();
  // Before lay_out(): no gradients of it are computed.
  void freeze(Param&);

  // Gives every parameter its place in the flat layout, once all are declared. Whoever keeps parameters in another way
  // than allocate() calls it first, then binds values and gradients itself.
  void lay_out();
  std::int64_t size() const { return size_; }                  // of the flat layout, in elements
  std::int64_t trained_size() const { return trained_size_; }  // of its part that has gradients, which comes first
  // Allocates the flat buffers, binds every slot, and fills the values.
  void allocate(const ExecContext&, std::uint64_t seed, const ParamTypes& = {});
  // Copies the master values to the weights that kernels read, after something else than the optimizer wrote them.
  void refresh_weights(const ExecContext&) const;
  void start_step();  // the next gradient write of every slot stores, later ones add

  // Whether other slices hold other parts of it.
  bool is_cut(const Param& p) const { return slice_.size > 1 && p.placement.cut != Cut::none; }

  // Vectors first, then matrices; of each first those that every slice holds whole, then those that are cut, each in
  // order of declaration: gradients become complete from the back to the front. What is frozen comes behind all others,
  // in the same order.
  const std::vector<Param*>& layout() const { return layout_; }
  std::int64_t matrices_begin() const { return matrices_begin_; }  // of those that are trained
  std::int64_t count() const;                                      // logical elements of the whole, without padding

  // Flat; undefined where this process holds only parts of them.
  Tensor values;     // the master copy
  Tensor weights;    // the same bytes, or their copy in another type
  Tensor gradients;  // [trained_size]; undefined when not trainable

 private:
  void take_slice(Param&) const;
  void take_slice(LogicalParam&, std::size_t index, const Param&) const;

  Slice slice_{};
  std::deque<Param> params_;
  std::unordered_set<std::string> names_;  // of their parts
  std::vector<Param*> layout_;
  std::int64_t matrices_begin_ = 0, trained_size_ = 0, size_ = 0;
};

// Fills rows of a logical parameter with their initial values: `value` [rows] or [rows, columns] holds those from
// `first` on, counted in what this process holds of it.
void initialise(const Tensor& value, const LogicalParam&, std::int64_t first, std::uint64_t seed, const ExecContext&);

// A master copy [size] of zeros, where `types` says. OutOfMemory.
Tensor make_master(std::int64_t size, const ParamTypes&, const ExecContext&);
// weights = values, in their type. The values may be in host memory.
void copy_values(const Tensor& values, const Tensor& weights, const ExecContext&);

// Adds parameters below a dotted prefix.
struct ParamPrefix {
  Parameters& params;
  std::string prefix;
  ParamPrefix child(const std::string& name) const { return {params, prefix + name + "."}; }
  std::string operator()(const std::string& name) const { return prefix + name; }
};

}  // namespace ring
