#pragma once
// The ranks of a run as a grid with named axes: pure arithmetic, the same on every rank.

#include <string>
#include <vector>

namespace ring {

struct MeshAxis {
  std::string name;
  int degree = 1;
  // Transfers along this axis run while kernels compute: its group has a communicator of its own, which takes few
  // multiprocessors or none.
  bool beside_kernels = false;
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
