#include "inspect/part_times.h"

#include <algorithm>
#include <cstdio>

#include "engine/activation_planner.h"

namespace ring {
namespace {

// The model part, and the pass (forward or backward), to which a profiled call belongs.
struct Place {
  ScopeId model_part;
  int profiled_index = -1;  // index of the model part's scope in Profile::parts
  bool backward = false;
};

// profiled: index in Profile::parts, or -1.
Place place_of(const Profile& p, int profiled) {
  Place place;
  for (; profiled >= 0; profiled = p.parts[static_cast<std::size_t>(profiled)].parent) {
    const ProfiledPart& here = p.parts[static_cast<std::size_t>(profiled)];
    if (!here.op.empty()) continue;  // an op of the tape within a scope
    if (here.scope.kind == scopes::backward) {
      place.backward = true;
      continue;
    }
    place.model_part = here.scope.part();  // the outermost scope is assigned last
    place.profiled_index = profiled;
  }
  return place;
}

std::string name_of(const ScopeId& part, const ActivationPlan& plan) {
  const auto block = static_cast<std::size_t>(part.number);
  if (!part.is_repeated() || block >= plan.blocks.size()) return str(part.kind);
  const BlockPlan& way = plan.blocks[block];
  return blocks_text(std::ranges::count(plan.blocks, way), way);
}

PassTime& pass_of(std::vector<PartTimes>& rows, const std::string& name, bool backward) {
  auto row = std::ranges::find(rows, name, &PartTimes::name);
  if (row == rows.end()) row = rows.insert(rows.end(), {name, {}, {}});
  return backward ? row->backward : row->forward;
}

std::string cells(const PassTime& t) {
  char text[80];
  const double error = t.measured > 0 ? 100 * (t.predicted / t.measured - 1) : 0;
  std::snprintf(text, sizeof text, " %10.3f %10.3f %+5.0f%% %9.3f", 1e3 * t.predicted, 1e3 * t.measured, error,
                1e3 * t.waiting);
  return text;
}

}  // namespace

std::vector<PartTimes> part_times(const Profile& p, const ActivationPlan& plan, const DeviceRates& rates,
                                  Precision precision) {
  std::vector<PartTimes> rows;
  std::vector<double> in_kernels(p.parts.size());  // device seconds of kernels by profiled scope, events included
  const double steps = static_cast<double>(std::max<std::size_t>(1, p.steps.size()));
  for (const ProfiledCall& c : p.calls) {
    const Place place = place_of(p, c.part);
    PassTime& t = pass_of(rows, name_of(place.model_part, plan), place.backward);
    t.predicted += seconds_of(rates, precision, c.slot, c.cost) / steps;
    t.measured += std::max(0.0, c.device.seconds - p.event_seconds) / steps;
    if (place.profiled_index >= 0) in_kernels[static_cast<std::size_t>(place.profiled_index)] += c.device.seconds;
  }
  for (std::size_t i = 0; i < p.parts.size(); ++i)
    if (const Place place = place_of(p, static_cast<int>(i)); in_kernels[i] > 0)
      pass_of(rows, name_of(place.model_part, plan), place.backward).waiting +=
          std::max(0.0, p.parts[i].device.seconds - in_kernels[i]) / steps;
  return rows;
}

std::string part_times_table(const std::vector<PartTimes>& rows, const DeviceRates& rates) {
  std::size_t width = 22;
  for (const PartTimes& r : rows) width = std::max(width, r.name.size());
  const std::string gap(width, ' ');
  // Two groups of columns, each as wide as cells().
  std::string out = str("ms per step, predicted with the rates of ", rates.device, " and measured\n", gap,
                        "                   forward                                 backward\n", gap);
  for (int pass = 0; pass < 2; ++pass) out += "  predicted   measured  error   waiting";
  PassTime all[2];
  const auto add = [](PassTime& sum, const PassTime& t) {
    sum.predicted += t.predicted, sum.measured += t.measured, sum.waiting += t.waiting;
  };
  for (const PartTimes& r : rows) {
    out += str("\n", r.name, std::string(width - r.name.size(), ' '), cells(r.forward), cells(r.backward));
    add(all[0], r.forward);
    add(all[1], r.backward);
  }
  return str(out, "\nall", std::string(width - 3, ' '), cells(all[0]), cells(all[1]), "\n");
}

}  // namespace ring
