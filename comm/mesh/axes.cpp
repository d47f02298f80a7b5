#include "comm/mesh/axes.h"

#include <algorithm>

#include "core/check.h"

namespace ring {

MeshAxes::MeshAxes(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    RING_CHECK(axes_[i].degree >= 1, "mesh: axis ", axes_[i].name, " has degree ", axes_[i].degree);
    for (std::size_t j = 0; j < i; ++j)
      RING_CHECK(axes_[i].name != axes_[j].name, "mesh: two axes are named ", axes_[i].name);
  }
}

int MeshAxes::size() const {
  int n = 1;
  for (const MeshAxis& a : axes_) n *= a.degree;
  return n;
}

const MeshAxis& MeshAxes::axis(const std::string& name) const {
  const auto at = std::ranges::find(axes_, name, &MeshAxis::name);
  if (at != axes_.end()) return *at;
  std::string names;
  for (const MeshAxis& a : axes_) names += str(names.empty() ? "" : ", ", a.name);
  fail("mesh: no axis '", name, "'; its axes are ", names);
}

int MeshAxes::coord(int rank, const std::string& name) const {
  const MeshAxis& wanted = axis(name);
  int stride = 1;
  for (auto a = axes_.rbegin(); a->name != name; ++a) stride *= a->degree;
  return rank / stride % wanted.degree;
}

std::vector<int> MeshAxes::group(int rank, const AxisNames& names) const {
  for (const std::string& name : names) axis(name);
  const auto is_along = [&](const MeshAxis& a) { return std::ranges::count(names, a.name) > 0; };
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r)
    if (std::ranges::all_of(axes_,
                            [&](const MeshAxis& a) { return is_along(a) || coord(r, a.name) == coord(rank, a.name); }))
      ranks.push_back(r);
  return ranks;
}

}  // namespace ring
