#include <gtest/gtest.h>

#include "comm/host.h"
#include "comm/mesh/mesh.h"
#include "core/fake.h"

namespace ring {
namespace {

const MeshLayout kLayout{
    .axes = {{"dp", 2}, {"cp", 2, AxisTransfers::beside_kernels}, {"tp", 2}}, .unions = {{"dp", "cp"}}, .device = {}};

// Host values are real, also in a mesh of one process.
TEST(FakeMesh, HostValuesAreGathered) {
  const FakeMode fake;
  const MeshLayout alone{.axes = {{"dp", 1}}, .unions = {}, .device = {}};
  for (const MeshLayout& layout : {alone, kLayout})
    EXPECT_EQ(gather_host(Mesh::fake(layout, 0)->host(), "what I say").front(), "what I say");
}

TEST(FakeMesh, HasTheRanksOfItsLayout) {
  const auto mesh = Mesh::fake(kLayout, 5);
  EXPECT_EQ(mesh->world(), 8);
  EXPECT_EQ(mesh->coord("dp"), 1);
  EXPECT_EQ(mesh->coord("cp"), 0);
  EXPECT_EQ(mesh->coord("tp"), 1);
  EXPECT_EQ(mesh->group({"dp", "cp"}).size(), 4);
  EXPECT_EQ(mesh->axis("tp").rank(), 1);
}

TEST(FakeMesh, OtherRanksRepeatTheHostValuesOfThisRank) {
  const auto mesh = Mesh::fake(kLayout, 0);
  EXPECT_EQ(sum_host(mesh->host(), 3), 24);
  EXPECT_FALSE(any_host(mesh->host(), false));
}

TEST(FakeMesh, ShowsTheMessagesOfTheDevice) {
  std::vector<FakeTransfer> seen;
  const auto mesh = Mesh::fake(kLayout, 0, [&](const FakeTransfer& t) { seen.push_back(t); });
  const FakeMode fake;
  const Stream stream = Stream::create({});
  const Tensor t = Tensor::empty({1000}, DType::f32, stream), half = Tensor::empty({500}, DType::f32, stream);
  mesh->axis("tp").all_reduce(t, Reduce::sum).wait(stream);
  mesh->axis("tp").reduce_scatter(half, t, Reduce::sum).wait(stream);
  mesh->axis("cp").exchange({{half, 1}}, {{half, 1}}).wait(stream);
  sum_host(mesh->host(), 1);
  ASSERT_EQ(seen.size(), 3u) << "host values are not the device's messages";
  EXPECT_EQ(seen[0].group, "tp");
  EXPECT_EQ(seen[0].operation, "all_reduce");
  EXPECT_EQ(seen[0].bytes, 4000u);
  EXPECT_EQ(seen[1].bytes, 4000u);
  EXPECT_EQ(seen[2].group, "cp");
  EXPECT_EQ(seen[2].bytes, 2000u);
}

// An axis that covers all ranks is named, too, although the group of all ranks has its own name.
TEST(FakeMesh, NamesTheAxisOfAMessage) {
  for (const char* axis : {"dp", "cp", "tp"}) {
    std::vector<FakeTransfer> seen;
    const MeshLayout layout{.axes = {{axis, 2}}, .unions = {}, .device = {}};
    const auto mesh = Mesh::fake(layout, 0, [&](const FakeTransfer& t) { seen.push_back(t); });
    const FakeMode fake;
    const Stream stream = Stream::create({});
    mesh->axis(axis).all_reduce(Tensor::empty({1000}, DType::f32, stream), Reduce::sum).wait(stream);
    ASSERT_EQ(seen.size(), 1u);
    EXPECT_EQ(seen[0].group, axis);
  }
}

}  // namespace
}  // namespace ring
