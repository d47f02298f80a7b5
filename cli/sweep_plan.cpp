#include "cli/sweep_plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>
#include <set>

#include "core/check.h"
#include "core/philox.h"
#include "core/text_file.h"
#include "core/yaml.h"

namespace ring {
namespace {

// Values of one setting: a list, or a range.
struct Choice {
  std::string key;
  std::vector<std::string> values;
  double from = 0, to = 0;
  bool log = false;

  // Maps a uniformly distributed u in [0, 1) to a value.
  std::string draw(double u) const {
    if (!values.empty()) return values[static_cast<std::size_t>(u * static_cast<double>(values.size()))];
    char text[40];
    std::snprintf(text, sizeof text, "%.4g", log ? from * std::pow(to / from, u) : from + u * (to - from));
    return text;
  }
};

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  SweepPlan read() {
    const YamlNode root = parsed();
    if (root.type != YamlNode::Type::map) wrong(root.line, "expected a section of `key: value`");
    std::set<std::string> seen;
    for (const YamlNode::Entry& e : root.entries) {
      if (!seen.insert(e.key).second) wrong(e.line, e.key + ": given twice");
      take(e);
    }
    for (const char* needed : {"train", "directory", "settings"})
      if (!seen.contains(needed)) wrong(1, str("the key '", needed, "' is required"));
    for (const Choice& c : choices_) plan_.keys.push_back(c.key);
    if (count_)
      draw(*count_);
    else
      combine();
    return std::move(plan_);
  }

 private:
  [[noreturn]] void wrong(int line, const std::string& what) const { fail(file_, ":", line, ": ", what); }

  YamlNode parsed() const try { return parse_yaml(read_text_file(file_, kMaxYamlBytes)); } catch (const YamlError& e) {
    wrong(e.line, e.what());
  }

  void take(const YamlNode::Entry& e) {
    if (e.key == "train")
      plan_.train = text_of(e.key, e.value);
    else if (e.key == "directory")
      plan_.directory = text_of(e.key, e.value);
    else if (e.key == "runs")
      count_ = whole(e, 1, kMaxSweepRuns);
    else if (e.key == "seed")
      seed_ = whole(e, 0, std::uint64_t{1} << 53);
    else if (e.key == "settings")
      take_settings(e);
    else
      wrong(e.line, e.key + ": unknown key; expected train, directory, settings, runs or seed");
  }

  void take_settings(const YamlNode::Entry& e) {
    if (e.value.type != YamlNode::Type::map || e.value.entries.empty())
      wrong(e.line, "settings: expected keys with values, such as optimizer.lr: [1e-3, 3e-3]");
    for (const YamlNode::Entry& s : e.value.entries) {
      if (std::ranges::find(choices_, s.key, &Choice::key) != choices_.end()) wrong(s.line, s.key + ": given twice");
      if (s.key.starts_with("run.directory") || s.key.starts_with("run.name"))
        wrong(s.line, s.key + ": cannot be set because the sweep gives each run its own. Remove it");
      choices_.push_back(choice_of(s));
    }
  }

  Choice choice_of(const YamlNode::Entry& s) const {
    Choice c{.key = s.key};
    if (s.value.type == YamlNode::Type::map) return range_of(s);
    if (s.value.type != YamlNode::Type::list || s.value.items.empty())
      wrong(s.line, s.key + ": expected a list of values or {from: A, to: B}");
    for (const YamlNode& item : s.value.items) c.values.push_back(text_of(s.key, item));
    return c;
  }
  Choice range_of(const YamlNode::Entry& s) const {
    Choice c{.key = s.key};
    std::optional<double> from, to;
    for (const YamlNode::Entry& e : s.value.entries) {
      if (e.key == "from")
        from = number(s.key, e.value);
      else if (e.key == "to")
        to = number(s.key, e.value);
      else if (e.key == "scale" && (e.value.text == "log" || e.value.text == "linear"))
        c.log = e.value.text == "log";
      else
        wrong(e.line,
              str(s.key, ": expected from, to, or scale: linear or log, got ", e.key, ": ", e.value.describe()));
    }
    if (!from || !to || !(*from < *to)) wrong(s.line, s.key + ": expected a number `from` below a number `to`");
    if (c.log && *from <= 0) wrong(s.line, s.key + ": expected `from` above 0 because scale is log");
    c.from = *from, c.to = *to;
    return c;
  }

  std::string text_of(const std::string& key, const YamlNode& node) const {
    if (node.type != YamlNode::Type::scalar || node.text.empty())
      wrong(node.line, str(key, ": expected one value, got ", node.describe()));
    return node.text;
  }
  double number(const std::string& key, const YamlNode& node) const {
    double v = 0;
    const char* end = node.text.data() + node.text.size();
    const auto [at, error] = std::from_chars(node.text.data(), end, v);
    if (node.type != YamlNode::Type::scalar || error != std::errc{} || at != end || !std::isfinite(v))
      wrong(node.line, str(key, ": expected a number, got ", node.describe()));
    return v;
  }
  std::uint64_t whole(const YamlNode::Entry& e, std::uint64_t min, std::uint64_t max) const {
    const double v = number(e.key, e.value);
    if (v != std::floor(v) || v < static_cast<double>(min) || v > static_cast<double>(max))
      wrong(e.line, str(e.key, ": expected an integer from ", min, " to ", max, ", got ", e.value.describe()));
    return static_cast<std::uint64_t>(v);
  }

  void add(std::vector<std::string> settings) {
    char name[20];
    std::snprintf(name, sizeof name, "%03zu", plan_.runs.size() + 1);
    plan_.runs.push_back({name, std::move(settings)});
  }
  void draw(std::uint64_t count) {
    for (std::uint64_t run = 0; run < count; ++run) {
      std::vector<std::string> settings;
      for (const Choice& c : choices_)
        settings.push_back(c.key + "=" + c.draw(to_uniform(random_bits({seed_, 0, site_of(c.key)}, run))));
      add(std::move(settings));
    }
  }
  // Adds a run for each combination of values; the last key varies fastest.
  void combine() {
    std::size_t count = 1;
    for (const Choice& c : choices_) {
      if (c.values.empty()) wrong(1, c.key + ": a range requires `runs`, the number of runs to draw");
      count = std::min(kMaxSweepRuns + 1, count * c.values.size());
    }
    if (count > kMaxSweepRuns)
      wrong(1, str("the sweep has more than ", kMaxSweepRuns, " runs. Set `runs` to draw some of them"));
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<std::string> settings;
      std::size_t rest = i;
      for (auto c = choices_.rbegin(); c != choices_.rend(); rest /= c->values.size(), ++c)
        settings.insert(settings.begin(), c->key + "=" + c->values[rest % c->values.size()]);
      add(std::move(settings));
    }
  }

  std::string file_;
  SweepPlan plan_;
  std::vector<Choice> choices_;
  std::optional<std::uint64_t> count_;
  std::uint64_t seed_ = 1;
};

}  // namespace

SweepPlan read_sweep(const std::string& file) { return Reader(file).read(); }

}  // namespace ring
