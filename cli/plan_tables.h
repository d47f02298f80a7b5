#pragma once
// Tables of `ringmaster plan`: memory and speed of layouts, for one device.

#include <cstddef>
#include <string>

#include "engine/layouts.h"

namespace ring {

// Unit of a table: GiB, or MiB if the largest number is below 1 GiB.
struct MemoryUnit {
  const char* name;
  double bytes;
  double of(std::size_t memory) const { return static_cast<double>(memory) / bytes; }
};
MemoryUnit unit_of(std::size_t largest);

// Prints the `rows` fastest layouts that fit, with their memory by kind, and how much memory the others would need.
void print_layouts(const Layouts&, std::size_t rows);
// Explains the columns of the first table. device: "GPU" or "process".
void print_legend(const std::string& device);
// Returns the setting's value as a word, such as "block". The key must be one with a fixed set of choices.
std::string choice_text(Config, const std::string& key);
// Prints the layout as settings. which: its description, such as "fastest".
void print_settings(const PlannedStep&, const char* which);
// Prints the layout as settings, and what its blocks save, recompute and offload.
void print_planned(const PlannedStep&);

}  // namespace ring
