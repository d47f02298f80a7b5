#pragma once
// What `ringmaster plan` prints of layouts, for one device.

#include <cstddef>
#include <string>

#include "engine/layouts.h"

namespace ring {

// What a table is in: GiB, or MiB where even its largest number is less than one of these.
struct MemoryUnit {
  const char* name;
  double bytes;
  double of(std::size_t memory) const { return static_cast<double>(memory) / bytes; }
};
MemoryUnit unit_of(std::size_t largest);

// Those that fit, the fastest first, with their memory by kind; and of those that do not, the least that would do.
void print_layouts(const Layouts&, std::size_t rows);
// Explains the columns of the first table. device: "GPU" or "process".
void print_legend(const std::string& device);
// Returns the setting's value as a word, such as "block". The key must be one with a fixed set of choices.
std::string choice_text(Config, const std::string& key);
// Prints the layout as settings. which: its place among the layouts, such as "fastest".
void print_settings(const PlannedStep&, const char* which);
// One as settings, and what its blocks keep, compute again and move.
void print_planned(const PlannedStep&);

}  // namespace ring
