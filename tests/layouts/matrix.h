#pragma once
// Kinds of attention and layouts of ranks, and cells that combine them.

#include <string>
#include <vector>

namespace ring::test {

using Settings = std::vector<std::string>;  // "parallel.cp=2", as on the command line

struct Kind {
  std::string name;
  Settings settings;
  int kv_heads = 4;
  bool selects = false;  // blocks, in each step
};

struct Layout {
  std::string name;
  int ranks, cp = 1, tp = 1;
  Settings settings = {};          // beside the degrees
  bool all_to_all = false;         // cp exchanges heads
  bool replayed = false;           // train.cuda_graph=on takes effect
  bool for_selected_keys = false;  // differs from another layout only if blocks are selected
  // Layouts with equal axes share groups of ranks.
  Settings axes() const;
};

struct Cell {
  Kind kind;
  Layout layout;
  bool packed = false;  // several documents in a row
  bool graph = false;   // steps are replayed as a CUDA graph
};
std::string name_of(const Cell&);  // "kind=content layout=cp_ring packed graph"
Settings settings_of(const Cell&);
Settings settings_of_one_rank(const Cell&);  // the same training

// One kind that most layouts cannot divide is among them.
std::vector<Kind> all_kinds();
// ranks: 2 or 4.
std::vector<Layout> all_layouts(int ranks);

// Returns a part of the message that refuses the cell's settings, or nothing if the cell trains.
std::string expected_refusal(const Cell&);
// Returns whether the cell trains, and differs from every cell with other flags.
bool legal(const Cell&);

// Returns legal cells such that every two values of kind, layout, packed and graph that any legal cell combines are
// combined by at least one of them. Cells with equal axes are neighbours. The same lists give the same cells.
std::vector<Cell> pairwise_cells(const std::vector<Kind>&, const std::vector<Layout>&);
// Returns all cells of the same lists that are to be refused, without flags.
std::vector<Cell> refused_cells(const std::vector<Kind>&, const std::vector<Layout>&);

}  // namespace ring::test
