#include "tests/layouts/walk.h"

#include <cstdlib>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <utility>

#include "core/joined.h"
#include "core/philox.h"
#include "tests/trainer/documents.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kMostGroups = 5;     // of one walk: failures that end a group
constexpr double kLearned = 0.98;  // the last loss of a run, relative to its first one, is at most this

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

fs::path make_folder() {
  std::string pattern = (fs::temp_directory_path() / "ring_layouts_XXXXXX").string();
  if (!mkdtemp(pattern.data())) fail("no folder ", pattern);
  return pattern;
}

// Documents of 30 to 1,053 tokens.
void write_corpus(const fs::path& path) {
  write_documents(path.string(), 250, 2, [](std::uint64_t d) { return 30 + random_bits({7, 0, 0}, d) % 1024; });
}

std::string reference_name(const Cell& c) { return joined(settings_of_one_rank(c), " "); }

}  // namespace

Walk::Walk(WalkOptions options) : options_(std::move(options)), folder_(make_folder()) {
  write_corpus(folder_ / "corpus.h5");
}

Walk::~Walk() {
  group_.reset();
  fs::remove_all(folder_);
}

WorkerGroup& Walk::group() {
  if (group_) return *group_;
  if (++groups_ > kMostGroups) fail("not trained: ", kMostGroups, " groups of processes have failed before");
  group_ = std::make_unique<WorkerGroup>(options_.ranks, folder_);
  return *group_;
}

Order Walk::order(const Settings& settings) const {
  Order o;
  o.steps = options_.steps;
  o.settings = options_.shape;
  o.settings.push_back("data.path=" + (folder_ / "corpus.h5").string());
  o.settings.push_back("run.directory=" + (folder_ / "run").string());
  o.settings.insert(o.settings.end(), settings.begin(), settings.end());
  return o;
}

void Walk::train_references(const std::vector<Cell>& cells) {
  std::map<std::string, Order> wanted;
  for (const Cell& c : cells)
    if (!references_.contains(reference_name(c))) wanted[reference_name(c)] = order(settings_of_one_rank(c));
  for (auto next = wanted.begin(); next != wanted.end();) {
    std::vector<Order> orders;
    std::vector<std::string> names;
    for (; next != wanted.end() && std::ssize(orders) < options_.ranks; ++next) {
      names.push_back(next->first);
      orders.push_back(next->second);
    }
    const std::vector<Answer> answers = group().train_alone(orders, options_.limit);
    for (std::size_t i = 0; i < answers.size(); ++i) {
      const Answer& a = answers[i];
      if (!a.refused.empty() || !a.error.empty()) fail("one rank with ", names[i], ": ", a.refused, a.error);
      if (!(a.losses.back() <= kLearned * a.losses.front()))
        fail("one rank with ", names[i], " learned nothing: its loss went from ", a.losses.front(), " to ",
             a.losses.back());
      references_[names[i]] = a;
    }
  }
}

const Answer& Walk::reference(const Cell& c) const {
  const auto found = references_.find(reference_name(c));
  RING_CHECK(found != references_.end(), name_of(c), " has no reference");
  return found->second;
}

std::string Walk::check(const Cell& cell, const Settings& more) {
  const std::string problem = train(cell, more);
  return problem.empty() ? "" : str(name_of(cell), more.empty() ? "" : " with " + joined(more, " "), ": ", problem);
}

std::string Walk::train(const Cell& cell, const Settings& more) {
  try {
    const Answer& one = reference(cell);
    Order o = order(settings_of(cell));
    o.settings.insert(o.settings.end(), more.begin(), more.end());
    const auto begin = Clock::now();
    const std::vector<Answer> ranks = group().train(o, joined(cell.layout.axes(), " "), options_.limit);
    if (more.empty()) keep({cell, distance(one, ranks[0]), seconds_since(begin)});
    if (std::ranges::any_of(ranks, [](const Answer& a) { return !a.error.empty(); })) group_.reset();
    std::string problem = disagreement(one, ranks, cell.kind.selects ? options_.selecting : options_.tolerance);
    if (problem.empty() && options_.graphs && ranks[0].replayed != cell.graph)
      problem = cell.graph ? "no step was replayed as a graph" : "steps were replayed as a graph";
    return problem;
  } catch (const Error& e) {
    group_.reset();
    return e.what();
  }
}

void Walk::keep(const Result& r) {
  results_.push_back(r);
  if (!options_.shows) return;
  char line[200];
  std::snprintf(line, sizeof line, "%6.2f s   loss %7.1e   norm %7.1e   ", r.seconds, r.distance.loss, r.distance.norm);
  std::cout << line << name_of(r.cell) << std::endl;
}

std::string Walk::check_refusal(const Cell& cell, const std::string& text) {
  try {
    const Order o = order(settings_of(cell));
    const std::vector<Answer> ranks = group().train(o, joined(cell.layout.axes(), " "), options_.limit);
    for (const Answer& a : ranks)
      if (a.refused.find(text) == std::string::npos)
        return str(name_of(cell), ": expected the refusal '", text, "..', got '", a.refused, a.error, "'");
    return "";
  } catch (const Error& e) {
    group_.reset();
    return str(name_of(cell), ": expected the refusal '", text, "..': ", e.what());
  }
}

// Sums up the cells with this name, which is that of their layout or their kind.
std::string Walk::row(const std::string& name, Name name_in) const {
  Result worst{};
  double seconds = 0, longest = 0, norm = 0;
  int cells = 0;
  for (const Result& r : results_) {
    if (name_in(r.cell) != name) continue;
    ++cells;
    seconds += r.seconds;
    longest = std::max(longest, r.seconds);
    norm = std::max(norm, r.distance.norm);
    if (r.distance.loss >= worst.distance.loss) worst = r;
  }
  char line[400];
  std::snprintf(line, sizeof line, "%-18s %5d %8.1f %8.1f   %8.1e %8.1e   %s\n", name.c_str(), cells, seconds, longest,
                worst.distance.loss, norm, name_of(worst.cell).c_str());
  return line;
}

std::string Walk::report() const {
  std::string text = "                   cells  seconds  longest       loss     norm   furthest from one rank\n";
  for (const Name name_in :
       {Name([](const Cell& c) { return c.layout.name; }), Name([](const Cell& c) { return c.kind.name; })}) {
    std::vector<std::string> names;
    for (const Result& r : results_)
      if (std::ranges::find(names, name_in(r.cell)) == names.end()) names.push_back(name_in(r.cell));
    for (const std::string& name : names) text += row(name, name_in);
  }
  return text;
}

}  // namespace ring::test
