#pragma once
// Trains cells one after another with one group of processes, and compares each with a run of one rank.

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/layouts/compare.h"
#include "tests/layouts/group.h"
#include "tests/layouts/matrix.h"

namespace ring::test {

struct LayoutRunnerOptions {
  int ranks = 2;
  int steps = 12;
  Settings shape;  // of the model and its training, for all cells
  Tolerance tolerance{};
  Tolerance selection_tolerance{};  // for kinds that select blocks in each step: a score's last bit may decide
  bool check_graphs = false;        // if true, checks that exactly the cells with `graph` replay steps
  std::chrono::seconds limit{120};  // of one cell
  bool verbose = false;             // prints a line after each cell
};

class LayoutRunner {
 public:
  explicit LayoutRunner(LayoutRunnerOptions);
  ~LayoutRunner();

  // Trains the runs of one rank that these cells are compared with, in parallel on all workers. Throws Error if a run
  // fails or its loss does not fall.
  void train_references(const std::vector<Cell>&);
  // Trains the cell with `more` settings. Returns what is wrong, beginning with the cell's name, or "". Requires that
  // train_references() has trained the cell's reference. After a failure, a new group of processes trains the next
  // cell.
  std::string check(const Cell&, const Settings& more = {});
  // Expects that the program refuses the cell with a message that contains `text`. Returns what is wrong, or "".
  std::string check_refusal(const Cell&, const std::string& text);

  WorkerGroup& group();
  void set_limit(std::chrono::seconds limit) { options_.limit = limit; }
  void set_tolerance(const Tolerance& tolerance) { options_.tolerance = tolerance; }
  // Returns a table with the largest differences and the time of each layout and of each kind.
  std::string report() const;

 private:
  struct Result {
    Cell cell;
    Distance distance;
    double seconds;
  };
  using Name = std::string (*)(const Cell&);
  Request request(const Settings&) const;
  const Reply& reference(const Cell&) const;
  std::string train(const Cell&, const Settings& more);
  void record(const Result&);
  std::string row(const std::string& name, Name) const;

  LayoutRunnerOptions options_;
  std::filesystem::path folder_;
  std::unique_ptr<WorkerGroup> group_;  // null before the first cell and after a failure
  int groups_ = 0;                      // number of groups started so far
  std::map<std::string, Reply> references_;
  std::vector<Result> results_;
};

}  // namespace ring::test
