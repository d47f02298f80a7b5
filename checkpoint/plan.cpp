#include "checkpoint/plan.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/json.h"

namespace ring {
namespace {

using nlohmann::json;

std::vector<std::int64_t> numbers(const Shape& s) { return {s.begin(), s.end()}; }
Shape shape_from(const json& j) {
  Shape shape;
  for (const json& d : j) shape.push_back(d.get<std::int64_t>());
  return shape;
}

struct Holders {
  Region region;
  std::vector<int> ranks;
};
// A tensor, merged from the descriptions of all ranks.
struct Described {
  SavedTensor saved;
  std::vector<Holders> regions;
  int first_rank = -1;  // the first rank that described it
};

void add_holder(Described& t, const std::string& name, const json& j, int rank) {
  const DType dtype = parse_dtype(j.at("dtype").get<std::string>());
  const Shape shape = shape_from(j.at("shape"));
  if (t.first_rank < 0) {
    t.saved.dtype = dtype;
    t.saved.global_shape = shape;
    t.first_rank = rank;
  }
  if (dtype != t.saved.dtype || !(shape == t.saved.global_shape))
    fail("state '", name, "' is ", t.saved.dtype, t.saved.global_shape, " on rank ", t.first_rank, " and ", dtype,
         shape, " on rank ", rank);
  const Region region{shape_from(j.at("start")), shape_from(j.at("size"))};
  if (region.numel() == 0 && shape.numel() != 0) return;
  for (Holders& h : t.regions)
    if (h.region == region) return h.ranks.push_back(rank);
  t.regions.push_back({region, {rank}});
}

// Chooses writers greedily, sorted by name, so that every rank computes the same plan.
void assign_writers(const std::string& name, Described& t, std::vector<std::uint64_t>& load) {
  for (const Holders& h : t.regions) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(h.region.numel()) * size_of(t.saved.dtype);
    int writer = h.ranks.front();
    for (int rank : h.ranks)
      if (load[static_cast<std::size_t>(rank)] < load[static_cast<std::size_t>(writer)]) writer = rank;
    load[static_cast<std::size_t>(writer)] += bytes;
    t.saved.slices.push_back({h.region, shard_name(writer), 0, bytes, ""});
  }
  try {
    check_cover(name, t.saved);
  } catch (const Error& e) {
    fail("the ranks' parts do not form a whole tensor: ", e.what());
  }
}

void check_values(const std::vector<json>& ranks) {
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    const json &ours = ranks[0].at("values"), &theirs = ranks[r].at("values");
    if (ours == theirs) continue;
    for (const auto& [name, value] : ours.items())
      if (!theirs.contains(name) || theirs.at(name) != value)
        fail("state '", name, "' is ", value.dump(), " on rank 0 and ", theirs.value(name, json("missing")).dump(),
             " on rank ", r, ": values must agree on all ranks");
    for (const auto& [name, value] : theirs.items())
      if (!ours.contains(name)) fail("state '", name, "' exists on rank ", r, ", but not on rank 0");
  }
}

}  // namespace

std::string shard_name(int rank) {
  char name[32];
  std::snprintf(name, sizeof name, "shard-%05d.h5", rank);
  return name;
}

std::string describe_state(const Snapshot& state) {
  json tensors = json::object(), values = json::object();
  for (const auto& [name, t] : state.tensors())
    tensors[name] = {{"dtype", std::string(to_string(t.local.dtype()))},
                     {"shape", numbers(t.global_shape)},
                     {"start", numbers(t.start)},
                     {"size", numbers(t.local.shape())}};
  for (const auto& [name, value] : state.values()) {
    const std::string text = value_to_json(name, value);
    values[name] = state.must_agree(name) ? parse_own_json<json>(text) : json("of rank 0");
  }
  return json{{"tensors", tensors}, {"values", values}}.dump();
}

Manifest plan_shards(const std::vector<std::string>& state_descriptions) {
  std::vector<json> ranks;
  for (const std::string& text : state_descriptions) ranks.push_back(parse_own_json<json>(text));
  check_values(ranks);
  std::map<std::string, Described> tensors;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    for (const auto& [name, t] : ranks[r].at("tensors").items())
      add_holder(tensors[name], name, t, static_cast<int>(r));
  Manifest plan;
  plan.world = static_cast<int>(ranks.size());
  std::vector<std::uint64_t> load(ranks.size(), 0);
  for (auto& [name, t] : tensors) {
    assign_writers(name, t, load);
    plan.tensors.emplace(name, std::move(t.saved));
  }
  return plan;
}

std::vector<PlannedSlice> slices_of(Manifest& manifest, const std::string& file) {
  std::vector<PlannedSlice> found;
  for (auto& [name, t] : manifest.tensors)
    for (SavedSlice& s : t.slices)
      if (s.file == file) found.push_back({name, t.dtype, &s});
  return found;
}

std::map<std::string, std::vector<PlannedSlice>> slices_by_file(Manifest& manifest) {
  std::map<std::string, std::vector<PlannedSlice>> found;
  for (auto& [name, t] : manifest.tensors)
    for (SavedSlice& s : t.slices) found[s.file].push_back({name, t.dtype, &s});
  return found;
}

}  // namespace ring
