#include "optim/groups.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>

#include "checkpoint/fp8_tensors.h"
#include "core/fields.h"
#include "core/joined.h"
#include "core/setting_problem.h"
#include "core/yaml.h"
#include "optim/kinds.h"

namespace ring {
namespace {

constexpr std::size_t kListed = 8;

bool names(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

bool names(const GroupConfig& group, const std::string& name) {
  return std::ranges::any_of(group.match, [&](const std::string& pattern) { return names(pattern, name); });
}

std::vector<std::string> names_of(const std::vector<Param*>& params) {
  std::vector<std::string> all;
  for (const Param* p : params)
    for (const LogicalParam& part : p->parts) all.push_back(part.name);
  return all;
}

std::string listed(const std::vector<std::string>& all) {
  const std::vector<std::string> some(all.begin(),
                                      all.begin() + static_cast<std::ptrdiff_t>(std::min(kListed, all.size())));
  return joined(some, ", ") + (all.size() > kListed ? str(" and ", all.size() - kListed, " more") : "");
}

// Returns true if each pattern of an entry matches a parameter; else adds problems.
bool check_patterns(const GroupConfig& group, std::size_t entry, const std::vector<std::string>& all,
                    std::vector<SettingProblem>& errors) {
  const std::size_t before = errors.size();
  for (std::size_t i = 0; i < group.match.size(); ++i) {
    const std::string& pattern = group.match[i];
    if (std::ranges::any_of(all, [&](const std::string& name) { return names(pattern, name); })) continue;
    errors.push_back(str("optimizer.groups[", entry, "].match[", i, "]: \"", shown(pattern),
                         "\" matches no parameter of this model. Its parameters: ", listed(all)));
  }
  return errors.size() == before;
}

const GroupConfig* group_of(const OptimizerConfig& c, const LogicalParam& part) {
  return part.group ? &c.groups[part.group - 1] : nullptr;
}

void bind(const OptimizerConfig& c, const Param& p, LogicalParam& part) {
  part.group = 0;
  for (std::size_t i = 0; i < c.groups.size(); ++i)
    if (names(c.groups[i], part.name)) part.group = i + 1;
  part.frozen = p.base || (part.group && c.groups[part.group - 1].frozen);
  part.update_flops = part.frozen ? 0 : optimizer_kind(optimizer_kind_of(c, p, part))(c, 0)->flops(part.whole);
}

template <class Fn>
bool any_of_entry(const std::vector<Param*>& params, std::size_t entry, const Fn& fn) {
  return std::ranges::any_of(params, [&](const Param* p) {
    return std::ranges::any_of(p->parts,
                               [&](const LogicalParam& part) { return part.group == entry + 1 && fn(*p, part); });
  });
}

// Adds a problem if an entry has no effect, or has a kind that updates none of the entry's parameters.
void check_entry(const OptimizerConfig& c, std::size_t i, const std::vector<Param*>& params,
                 std::vector<SettingProblem>& errors) {
  const std::optional<std::string>& kind = c.groups[i].kind;
  const auto uses = [&](const Param& p, const LogicalParam& part) { return optimizer_kind_of(c, p, part) == *kind; };
  if (any_of_entry(params, i, [](const Param& p, const LogicalParam&) { return p.base; }) &&
      !any_of_entry(params, i, [](const Param& p, const LogicalParam&) { return !p.base; }))
    errors.push_back(str("optimizer.groups[", i,
                         "]: has no effect, because all of its parameters are frozen (model.lora). Name adapters, such "
                         "as '*.lora_b.weight', or leave it out"));
  else if (!any_of_entry(params, i, [](const Param&, const LogicalParam&) { return true; }))
    errors.push_back(
        str("optimizer.groups[", i,
            "]: later entries override it for all of its parameters. Leave it out, or move it after them"));
  else if (kind && !any_of_entry(params, i, uses))
    errors.push_back(
        str("optimizer.groups[", i, "].kind: ", *kind, " updates none of the entry's parameters. Leave it out"));
}

bool asks_for(const OptimizerConfig& c, const std::string& kind) {
  return c.kind == kind || std::ranges::any_of(c.groups, [&](const GroupConfig& g) { return g.kind == kind; });
}

std::string million(std::int64_t n) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g M", static_cast<double>(n) * 1e-6);
  return text;
}

struct Alike {
  std::string first;
  std::int64_t parameters = 0, elements = 0;
};

std::string update_text(const OptimizerConfig& c, const Param& p, const LogicalParam& part) {
  if (part.frozen) return "frozen";
  const GroupConfig* group = group_of(c, part);
  return str(optimizer_kind_of(c, p, part), ", lr ", group && group->lr ? *group->lr : c.lr, ", weight_decay ",
             weight_decay_of(c, p, part));
}

}  // namespace

void bind_groups(const OptimizerConfig& c, Parameters& declared, std::vector<SettingProblem>& errors) {
  const std::vector<Param*> params = declared.declared();
  for (Param* p : params) {
    for (LogicalParam& part : p->parts) bind(c, *p, part);
    if (p->is_frozen()) declared.freeze(*p);
  }
  const std::vector<std::string> all = names_of(params);
  for (std::size_t i = 0; i < c.groups.size(); ++i)
    if (check_patterns(c.groups[i], i, all, errors)) check_entry(c, i, params, errors);
  if (std::ranges::all_of(params, &Param::is_frozen))
    errors.push_back("optimizer.groups: all parameters are frozen, so nothing is left to train");
}

void bind_groups(const OptimizerConfig& c, Parameters& declared) {
  std::vector<SettingProblem> errors;
  bind_groups(c, declared, errors);
  if (!errors.empty()) fail(errors[0].text);
}

void add_unused_settings(const OptimizerConfig& c, std::vector<SettingProblem>& errors) {
  if (asks_for(c, kMuonKind)) return;
  MuonConfig given = c.muon, plain;
  const config::Node mine = bind_config(given), defaults = bind_config(plain);
  for (std::size_t i = 0; i < mine.fields.size(); ++i) {
    const std::string value = config::to_text(mine.fields[i].node.get());
    const std::string unset = config::to_text(defaults.fields[i].node.get());
    if (value != unset)
      errors.push_back(unused_setting(str("optimizer.muon.", mine.fields[i].name, ": ", value,
                                          " applies to kind: muon, but optimizer.kind is ", c.kind,
                                          " and no group has that kind. Leave it out (", unset, ")")));
  }
}

std::string optimizer_kind_of(const OptimizerConfig& c, const Param& p, const LogicalParam& part) {
  const GroupConfig* group = group_of(c, part);
  const std::string& kind = group && group->kind ? *group->kind : c.kind;
  return optimizer_kind(kind)(c, 0)->takes(p) ? kind : kElementKind;
}

float lr_scale_of(const OptimizerConfig& c, const LogicalParam& part) {
  const GroupConfig* group = group_of(c, part);
  return group && group->lr ? static_cast<float>(*group->lr / c.lr) : 1.0f;
}

float weight_decay_of(const OptimizerConfig& c, const Param& p, const LogicalParam& part) {
  const GroupConfig* group = group_of(c, part);
  if (group && group->weight_decay) return static_cast<float>(*group->weight_decay);
  return p.decay ? static_cast<float>(c.weight_decay) : 0;
}

std::vector<std::string> saved_states(const OptimizerConfig& c, const Param& p, const LogicalParam& part) {
  LogicalParam as_saved = part;
  bind(c, p, as_saved);
  std::vector<std::string> states;
  if (as_saved.frozen) return states;
  for (const StateKind& state : optimizer_kind(optimizer_kind_of(c, p, as_saved))(c, 0)->states()) {
    states.push_back(str(state.name, ".", part.name));
    if (state.fp8) states.push_back(scales_name(states.back(), *state.fp8));
  }
  return states;
}

std::vector<std::string> describe_groups(const OptimizerConfig& c, const Parameters& bound) {
  std::vector<std::pair<std::string, Alike>> sets;
  for (const Param* p : bound.whole_layout())
    for (const LogicalParam& part : p->parts) {
      const std::string text = update_text(c, *p, part);
      auto at = std::ranges::find(sets, text, &std::pair<std::string, Alike>::first);
      if (at == sets.end()) at = sets.insert(at, {text, {part.name}});
      ++at->second.parameters;
      at->second.elements += part.whole.numel();
    }
  std::vector<std::string> lines;
  for (const auto& [text, set] : sets) {
    const std::string others = set.parameters > 1 ? str(" and ", set.parameters - 1, " more") : "";
    lines.push_back(str(set.first, others, " (", million(set.elements), "): ", text));
  }
  return lines;
}

}  // namespace ring
