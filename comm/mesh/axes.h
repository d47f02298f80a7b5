#pragma once
// The ranks of a run as a grid with named axes: pure arithmetic, with the same result on every rank.

#include <cstdint>
#include <string>
#include <vector>

namespace ring {

// Says when the transfers of an axis run. Transfers that overlap with kernels have their own communicator.
enum class AxisTransfers : std::uint8_t {
  between_kernels,
  beside_kernels,  // overlap with kernels, by copy engines or by NCCL with few SMs
  // Overlap with kernels if a GPU's copy engines move the data; otherwise like between_kernels, with as many SMs as
  // NCCL chooses.
  overlap_if_copy_engine,
};

struct MeshAxis {
  std::string name;
  int degree = 1;
  AxisTransfers transfers = AxisTransfers::between_kernels;
};

using AxisNames = std::vector<std::string>;

// The grid. The last axis varies fastest: ranks that differ only in it are neighbours.
class MeshAxes {
 public:
  // Throws Error if a name is given twice or a degree is below 1.
  explicit MeshAxes(std::vector<MeshAxis> axes);

  const std::vector<MeshAxis>& all() const { return axes_; }
  int size() const;                                     // number of ranks
  const MeshAxis& axis(const std::string& name) const;  // throws Error with the known axes
  int coord(int rank, const std::string& name) const;   // position of the rank along the axis
  // Returns a slice of the grid along one axis or a union of several: the ranks, ascending, that differ from `rank` in
  // no other axis.
  std::vector<int> group(int rank, const AxisNames&) const;

 private:
  std::vector<MeshAxis> axes_;
};

}  // namespace ring
