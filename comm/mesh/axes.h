#pragma once
// The ranks of a run as a grid with named axes: pure arithmetic, the same on every rank.

#include <cstdint>
#include <string>
#include <vector>

namespace ring {

// Transfers that run while kernels compute have a communicator of their own.
enum class AxisTransfers : std::uint8_t {
  between_kernels,
  beside_kernels,   // by copy engines, or by NCCL with few multiprocessors
  copied_or_alone,  // beside kernels where copy engines move them; else between, with as many multiprocessors as it
                    // takes
};

struct MeshAxis {
  std::string name;
  int degree = 1;
  AxisTransfers transfers = AxisTransfers::between_kernels;
};

using AxisNames = std::vector<std::string>;

// The last axis varies fastest: ranks that differ in it alone are neighbours.
class MeshAxes {
 public:
  // Error: a name given twice, a degree below 1.
  explicit MeshAxes(std::vector<MeshAxis> axes);

  const std::vector<MeshAxis>& all() const { return axes_; }
  int size() const;                                     // ranks of the grid
  const MeshAxis& axis(const std::string& name) const;  // Error names the axes that there are
  int coord(int rank, const std::string& name) const;
  // A slice of the grid along one axis, or along the union of several: the ranks, ascending, that differ from `rank` in
  // nothing else.
  std::vector<int> group(int rank, const AxisNames&) const;

 private:
  std::vector<MeshAxis> axes_;
};

}  // namespace ring
