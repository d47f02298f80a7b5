#pragma once
// The test matrix: kinds of attention, layouts of ranks, and cells that combine one of each.

#include <string>
#include <vector>

namespace ring::test {

using Settings = std::vector<std::string>;  // "parallel.cp=2", as on the command line

struct Kind {
  std::string name;
  Settings settings;
  int kv_heads = 4;
  bool selects = false;      // selects blocks in each step
  bool needs_whole = false;  // true if it works neither on sequences in chunks nor with hybrid
};

struct Layout {
  std::string name;
  int ranks, cp = 1, tp = 1;
  Settings settings = {};          // in addition to the degrees
  bool all_to_all = false;         // cp exchanges heads
  bool supports_graph = false;     // supports train.cuda_graph=on
  bool for_selected_keys = false;  // differs from the other layouts only if blocks are selected
  bool in_chunks = false;          // computes sequences in chunks
  bool hybrid = false;             // cp exchanges heads between pairs of ranks, and keys between these pairs
  int pp = 1, islands = 1;
  // Returns the settings of the mesh's axes: layouts with equal axes can share a mesh.
  Settings axes() const;
};

struct Cell {
  Kind kind;
  Layout layout;
  bool packed = false;  // several documents in a row
  bool graph = false;   // steps are to be replayed as a CUDA graph
};
std::string name_of(const Cell&);  // "kind=content layout=cp_ring packed graph"
Settings settings_of(const Cell&);
Settings settings_of_one_rank(const Cell&);  // the same training on one rank

// Returns all kinds, including one with a single KV head, which some layouts cannot divide.
std::vector<Kind> all_kinds();
// Returns all layouts. Requires 2 or 4 ranks.
std::vector<Layout> all_layouts(int ranks);

// Returns a part of the message that refuses the cell's settings, or "" if the cell trains.
std::string expected_refusal(const Cell&);
// Returns true if the cell trains, and its flags make a difference.
bool legal(const Cell&);

// Returns a pairwise covering of the legal cells: each pair of values (of kind, layout, packed and graph) that occurs
// in a legal cell occurs in a returned one. Cells with equal axes are neighbours. The same lists give the same cells.
std::vector<Cell> pairwise_cells(const std::vector<Kind>&, const std::vector<Layout>&);
// Returns all combinations of these lists that the program must refuse, with both flags false.
std::vector<Cell> refused_cells(const std::vector<Kind>&, const std::vector<Layout>&);

}  // namespace ring::test
