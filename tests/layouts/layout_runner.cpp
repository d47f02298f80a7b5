#include "tests/layouts/layout_runner.h"

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

constexpr int kMaxGroups = 5;           // per runner; each failure that ends a group needs a new one
constexpr double kMaxLossRatio = 0.98;  // maximum of a run's last loss relative to its first

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

fs::path make_folder() {
  std::string pattern = (fs::temp_directory_path() / "ring_layouts_XXXXXX").string();
  if (!mkdtemp(pattern.data())) fail("cannot create the folder ", pattern);
  return pattern;
}

// Documents of 30 to 1,053 tokens.
void write_corpus(const fs::path& path) {
  write_documents(path.string(), 250, 2, [](std::uint64_t d) { return 30 + random_bits({7, 0, 0}, d) % 1024; });
}

// Returns "" if each process has a CUDA context on its own GPU only, else which has more. A context takes seconds to
// create, and memory of its GPU.
std::string foreign_context(const std::vector<Reply>& ranks) {
  for (int r = 0; r < std::ssize(ranks); ++r)
    for (const int gpu : ranks[static_cast<std::size_t>(r)].gpus)
      if (gpu != r) return str("rank ", r, " has a CUDA context on GPU ", gpu, ", which is not its own");
  return "";
}

std::string reference_name(const Cell& c) { return joined(settings_of_one_rank(c), " "); }

}  // namespace

LayoutRunner::LayoutRunner(LayoutRunnerOptions options) : options_(std::move(options)), folder_(make_folder()) {
  write_corpus(folder_ / "corpus.h5");
}

LayoutRunner::~LayoutRunner() {
  group_.reset();
  fs::remove_all(folder_);
}

WorkerGroup& LayoutRunner::group() {
  if (group_) return *group_;
  if (++groups_ > kMaxGroups) fail("not trained: ", kMaxGroups, " groups of processes have already failed");
  group_ = std::make_unique<WorkerGroup>(options_.ranks, folder_);
  return *group_;
}

Request LayoutRunner::request(const Settings& settings) const {
  Request o;
  o.steps = options_.steps;
  o.settings = options_.shape;
  o.settings.push_back("data.path=" + (folder_ / "corpus.h5").string());
  o.settings.push_back("run.directory=" + (folder_ / "run").string());
  o.settings.insert(o.settings.end(), settings.begin(), settings.end());
  return o;
}

void LayoutRunner::train_references(const std::vector<Cell>& cells) {
  std::map<std::string, Request> wanted;
  for (const Cell& c : cells)
    if (!references_.contains(reference_name(c))) wanted[reference_name(c)] = request(settings_of_one_rank(c));
  for (auto next = wanted.begin(); next != wanted.end();) {
    std::vector<Request> requests;
    std::vector<std::string> names;
    for (; next != wanted.end() && std::ssize(requests) < options_.ranks; ++next) {
      names.push_back(next->first);
      requests.push_back(next->second);
    }
    const std::vector<Reply> replies = group().train_alone(requests, options_.limit);
    for (std::size_t i = 0; i < replies.size(); ++i) {
      const Reply& a = replies[i];
      if (!a.refused.empty() || !a.error.empty()) fail("one rank with ", names[i], ": ", a.refused, a.error);
      if (!(a.losses.back() <= kMaxLossRatio * a.losses.front()))
        fail("one rank with ", names[i], " did not learn: its loss went from ", a.losses.front(), " to ",
             a.losses.back());
      references_[names[i]] = a;
    }
  }
}

const Reply& LayoutRunner::reference(const Cell& c) const {
  const auto found = references_.find(reference_name(c));
  RING_CHECK(found != references_.end(), name_of(c), " has no reference");
  return found->second;
}

std::string LayoutRunner::check(const Cell& cell, const Settings& more) {
  const std::string problem = train(cell, more);
  return problem.empty() ? "" : str(name_of(cell), more.empty() ? "" : " with " + joined(more, " "), ": ", problem);
}

std::string LayoutRunner::train(const Cell& cell, const Settings& more) {
  try {
    const Reply& one = reference(cell);
    Request o = request(settings_of(cell));
    o.settings.insert(o.settings.end(), more.begin(), more.end());
    const auto begin = Clock::now();
    const std::vector<Reply> ranks = group().train(o, joined(cell.layout.axes(), " "), options_.limit);
    if (more.empty()) record({cell, distance(one, ranks[0]), seconds_since(begin)});
    if (std::ranges::any_of(ranks, [](const Reply& a) { return !a.error.empty(); })) group_.reset();
    std::string problem =
        disagreement(one, ranks, cell.kind.selects ? options_.selection_tolerance : options_.tolerance);
    if (problem.empty()) problem = foreign_context(ranks);
    if (problem.empty() && options_.check_graphs && ranks[0].replayed != cell.graph)
      problem = cell.graph ? "no step was replayed as a graph" : "steps were replayed as a graph";
    return problem;
  } catch (const Error& e) {
    group_.reset();
    return e.what();
  }
}

void LayoutRunner::record(const Result& r) {
  results_.push_back(r);
  if (!options_.verbose) return;
  char line[200];
  std::snprintf(line, sizeof line, "%6.2f s   loss %7.1e   norm %7.1e   ", r.seconds, r.distance.loss, r.distance.norm);
  std::cout << line << name_of(r.cell) << std::endl;
}

std::string LayoutRunner::check_refusal(const Cell& cell, const std::string& text) {
  try {
    const Request o = request(settings_of(cell));
    const std::vector<Reply> ranks = group().train(o, joined(cell.layout.axes(), " "), options_.limit);
    for (const Reply& a : ranks)
      if (a.refused.find(text) == std::string::npos)
        return str(name_of(cell), ": expected the refusal '", text, "..', got '", a.refused, a.error, "'");
    return "";
  } catch (const Error& e) {
    group_.reset();
    return str(name_of(cell), ": expected the refusal '", text, "..': ", e.what());
  }
}

// Returns the table's row over all cells with this name, where name_in() returns a cell's layout or its kind.
std::string LayoutRunner::row(const std::string& name, Name name_in) const {
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

std::string LayoutRunner::report() const {
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
