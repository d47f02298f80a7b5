#pragma once
// Trains cells one after the other with one group of processes, and compares each with a run of one rank.

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

struct WalkOptions {
  int ranks = 2;
  int steps = 12;
  Settings shape;  // of the model and its training
  Tolerance tolerance{};
  Tolerance selecting{};            // of kinds that select blocks in each step, where a score's last bit may decide
  bool graphs = false;              // the device can replay steps
  std::chrono::seconds limit{120};  // of one cell
  bool shows = false;               // prints a line when a cell is done
};

class Walk {
 public:
  explicit Walk(WalkOptions);
  ~Walk();

  // Trains what these cells are compared with, on all workers side by side. Throws Error if a run fails, or learns
  // nothing.
  void train_references(const std::vector<Cell>&);
  // Trains the cell, whose reference is trained, with `more` settings. Returns what is wrong, which begins with the
  // cell's name, or nothing. A group of processes in which something failed is replaced by a new one, for the next
  // cell.
  std::string check(const Cell&, const Settings& more = {});
  // Returns what is wrong if the program does not refuse the cell with a message that contains the text, or nothing.
  std::string check_refusal(const Cell&, const std::string& text);

  WorkerGroup& group();
  void set_limit(std::chrono::seconds limit) { options_.limit = limit; }
  // Returns a table of the largest differences and of the time of each layout and each kind.
  std::string report() const;

 private:
  struct Result {
    Cell cell;
    Distance distance;
    double seconds;
  };
  using Name = std::string (*)(const Cell&);
  Order order(const Settings&) const;
  const Answer& reference(const Cell&) const;
  std::string train(const Cell&, const Settings& more);
  void keep(const Result&);
  std::string row(const std::string& name, Name) const;

  WalkOptions options_;
  std::filesystem::path folder_;
  std::unique_ptr<WorkerGroup> group_;  // null: not started
  int groups_ = 0;                      // that were started
  std::map<std::string, Answer> references_;
  std::vector<Result> results_;
};

}  // namespace ring::test
