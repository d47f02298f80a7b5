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

class LinearFormat;

// Parameters start at multiples of 16 elements (64 bytes in f32), which is aligned for vectorized kernels.
inline constexpr std::int64_t kParamAlign = 16;
constexpr std::int64_t param_aligned(std::int64_t n) { return (n + kParamAlign - 1) / kParamAlign * kParamAlign; }

// Initial values of a parameter. The value of an element depends only on (seed, logical name, index in the logical
// tensor).
struct Init {
  enum class Kind : std::uint8_t { zeros, ones, normal, uniform } kind = Kind::zeros;
  float std = 0;            // standard deviation of Kind::normal
  float low = 0, high = 0;  // bounds of Kind::uniform
};

// The shard of the parameters that a process holds (tensor parallelism).
struct Slice {
  int rank = 0, size = 1;
};

// The axis along which tensor parallelism shards a parameter.
enum class Cut : std::uint8_t {
  none,     // replicated: every process holds the whole parameter
  outputs,  // shards the rows of each part (Megatron's column-parallel)
  inputs,   // shards the columns (Megatron's row-parallel)
  parts,    // distributes whole parts, such as the experts of a layer
};

// How the elements of a parameter are distributed, as set by the layer that declares the parameter.
struct Placement {
  Cut cut = Cut::none;
  std::int64_t row_multiple = 0;  // if > 0, the rows of each shard are padded to a multiple of it
};

// A logical parameter: some rows of the tensor that holds it. Its name is its checkpoint key. It is declared with its
// whole shape; this process holds `rows` rows of it (0 if none), which are the region [start, start + shape) of the
// whole parameter.
struct LogicalParam {
  std::string name;
  std::int64_t first_row = 0, rows = 0;
  Init init;
  Shape whole{}, start{};
  // Settings of the update (optim/groups.h):
  std::size_t group = 0;    // 0, or 1 + the index of an entry of optimizer.groups
  bool frozen = false;      // values never change
  double update_flops = 0;  // FLOPs of one update that needs the whole matrix; 0 if the update is elementwise
};

// One tensor of the model with its gradient slot. Logical parameters that one GEMM reads together (q, k, v; gate and
// up) are stacked along the rows of one Param.
struct Param {
  std::vector<LogicalParam> parts;
  Shape shape;  // shape in memory; rows after the last part are padding, always zero
  Placement placement;
  bool decay = false;       // weight decay: matrices only
  bool linear = false;      // weight of a linear layer; may have a number format (model/linear_format.h)
  bool table = false;       // an embedding or head: rows are independent, and backward does not read the values
  bool held = true;         // false if a different pipeline stage has the parameter (Model::hold_stage())
  bool adapter = false;     // a matrix of a low-rank adapter (model.lora)
  bool base = false;        // frozen because the model has low-rank adapters
  bool encoded = false;     // frozen, and on the device only in its format's encoding (model/weight_encoding.h)
  std::int64_t offset = 0;  // first element in the flat buffers
  Var var;                  // weight and gradient slot, bound by Parameters::allocate; no slot if frozen

  // Format of the linear layer; null if the layer computes in the type of its input.
  const LinearFormat* format = nullptr;

  bool is_frozen() const;  // true if all parts are frozen

  // Returns the rows of a logical parameter in a flat buffer with the layout of all parameters (values, gradients,
  // moments).
  Tensor part_of(const Tensor& flat, const LogicalParam& part) const;
};

// The parameters of a layer, of a block or of a part of the model.
using ParamList = std::vector<Param*>;
ParamList& operator+=(ParamList&, const ParamList& more);

// Buffers in host memory. master: the master values, if separate_master(). weights: also the weights.
enum class HostParams : std::uint8_t { none, master, weights };

// Data types of a model's tensors. If master and weights have the same type, they share one buffer.
struct ParamTypes {
  DType master = DType::f32;     // type of the values that the optimizer updates and checkpoints save
  DType weights = DType::f32;    // type of the weights in forward and backward
  DType gradients = DType::f32;  // type of the flat buffer that backward accumulates into
  bool trainable = true;         // false if there are no gradients
  HostParams on_host = HostParams::none;

  bool separate_master() const { return weights != master; }
};

class Parameters {
 public:
  // Declares a parameter. The returned reference stays valid. Every process holds the whole parameter until shard() is
  // called. `columns` 0 makes a vector. Throws Error if a name is given twice.
  Param& add(std::vector<LogicalParam> parts, std::int64_t columns, const Placement& = {});

  // Tensor parallelism: keeps this process's shard of every parameter, by the parameters' placements. Call before
  // lay_out(). Throws Error if a parameter does not divide.
  void shard(Slice);
  const Slice& slice() const { return slice_; }

  // Returns all parameters in order of declaration.
  std::vector<Param*> declared();
  // Excludes the parameter from training: it gets no gradient. Call before lay_out().
  void freeze(Param&);

  // Assigns every parameter its offset in the flat layout. Call after all parameters are declared. allocate() calls it;
  // a caller that allocates parameters in a different way calls lay_out(), then binds values and gradients.
  void lay_out();
  std::int64_t size() const { return size_; }                  // elements of the flat layout
  std::int64_t trained_size() const { return trained_size_; }  // elements of the layout's first part, which is trained
  // Offset of the first encoded weight; size() if there are none. Encoded weights have no elements in `weights`.
  std::int64_t encoded_begin() const { return encoded_begin_; }
  // Allocates the flat buffers, binds every slot except those of encoded weights (parallel/encoded_weights.h), and
  // fills the values.
  void allocate(const ExecContext&, std::uint64_t seed, const ParamTypes& = {});
  // Copies the master values to the weights that kernels read. Call after anything but the optimizer wrote the values.
  void refresh_weights(const ExecContext&) const;
  // Marks all gradients as unwritten: the next write to each gradient overwrites it, later writes add to it.
  void start_step();

  // Returns true if the parameter is sharded by tensor parallelism.
  bool is_cut(const Param& p) const { return slice_.size > 1 && p.placement.cut != Cut::none; }

  // Returns the parameters in layout order: vectors, then matrices; within each, replicated parameters, then sharded
  // ones; within these, in order of declaration. So gradients become complete from the back to the front. Frozen
  // parameters come after all others, in the same order, and encoded weights after all other frozen parameters.
  // Parameters that this process does not hold (Param::held) have no place in the layout.
  const std::vector<Param*>& layout() const { return layout_; }
  // Returns layout(), followed by the parameters that other pipeline stages hold.
  std::vector<Param*> whole_layout() const;
  std::int64_t matrices_begin() const { return matrices_begin_; }  // offset of the first trained matrix
  std::int64_t num_elements() const;                               // elements of the unsharded model, without padding

  // Flat buffers; undefined if this process holds only pieces of them (ZeRO).
  Tensor values;        // [encoded_begin], the master copy
  Tensor exact_values;  // in host memory: the master copy of encoded weights; undefined if there are none
  Tensor weights;       // the same memory as values, or a copy in a different type
  Tensor gradients;     // [trained_size]; undefined if not trainable

 private:
  void take_slice(Param&) const;
  void take_slice(LogicalParam&, std::size_t index, const Param&) const;

  Slice slice_{};
  std::deque<Param> params_;
  std::unordered_set<std::string> names_;  // names of all logical parameters
  std::vector<Param*> layout_, absent_;    // absent_: parameters that are not held
  std::int64_t matrices_begin_ = 0, trained_size_ = 0, encoded_begin_ = 0, size_ = 0;
};

// Fills rows of a logical parameter with their initial values. `value` [rows] or [rows, columns] holds the rows from
// `first` on, counted in the rows that this process holds.
void initialise(const Tensor& value, const LogicalParam&, std::int64_t first, std::uint64_t seed, const ExecContext&);

// Returns a buffer [size] of zeros for master values or for weights, in the memory that `types` specifies. Throws
// OutOfMemory.
Tensor make_master(std::int64_t size, const ParamTypes&, const ExecContext&);
Tensor make_weights(std::int64_t size, const ParamTypes&, const ExecContext&);
// Returns a buffer [size] of zeros in host memory for the values of encoded weights; undefined if size is 0. Throws
// OutOfHostMemory.
Tensor make_exact_values(std::int64_t size, const ParamTypes&, const ExecContext&);
// Copies values to weights, converted to their type. Both may be in host memory.
void copy_values_to_weights(const Tensor& values, const Tensor& weights, const ExecContext&);

// Declares parameters below a dotted prefix.
struct ParamPrefix {
  Parameters& params;
  std::string prefix;
  ParamPrefix child(const std::string& name) const { return {params, prefix + name + "."}; }
  std::string operator()(const std::string& name) const { return prefix + name; }
};

}  // namespace ring
