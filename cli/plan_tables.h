#pragma once
// Tables printed by `ringmaster plan`: memory per device and speed of layouts.

#include <cstddef>
#include <string>

#include "engine/layouts.h"
#include "engine/sent_bytes.h"

namespace ring {

// Unit of a table: GiB, or MiB if the largest number is below 1 GiB.
struct MemoryUnit {
  const char* name;
  double bytes;
  double of(std::size_t memory) const { return static_cast<double>(memory) / bytes; }
};
MemoryUnit unit_of(std::size_t largest);

// Prints the `max_rows` fastest layouts that fit, with their memory by kind, and the memory that the other layouts
// would need.
void print_layouts(const Layouts&, std::size_t max_rows);
// Explains the columns of the first table. device: "GPU" or "process".
void print_legend(const std::string& device);
// Returns the setting's value as a word, e.g. "block". The key must have a fixed set of choices.
std::string choice_text(Config, const std::string& key);
// Prints the layout as settings. which: description of the layout, e.g. "fastest".
void print_settings(const PlannedStep&, const char* which);
// Prints the layout as settings, and what the layout's blocks save, recompute and offload.
void print_planned(const PlannedStep&);

// Prints the bytes that a rank sends in a step, by number of ranks of cp.
void print_sent(const SentTable&, std::int64_t ranks_of_node);

}  // namespace ring
