#pragma once
// What a run does so that its steps fit into memory: what is computed again, and how many sequences are computed at a
// time. It is chosen when the run starts; when memory runs out all the same, a smaller choice takes its place.

#include <cstdint>
#include <optional>
#include <string>

#include "engine/activation_fit.h"

namespace ring {

struct MemoryChoice {
  std::int64_t micro_batch = 1;  // sequences at a time, of each replica
  ActivationFit fit;
  DeviceRates rates;         // that it was chosen by
  std::string text() const;  // "12 blocks keep everything: 61.2 GiB of 75.0 GiB, 4 sequences at a time"
  // For the start of a run. lasting: what weights, gradients and optimizer states take. Returns "a step is predicted to
  // take 61.2 GiB of 75.0 GiB: weights .., and the rest for activations; 12 blocks keep everything, 4 sequences at a
  // time"; without a prediction the latter parts alone.
  std::string text(const std::string& lasting) const;
};

// For a run; the same on every rank: the budget is the smallest of theirs, and `most` where that is less (0: nothing
// is). host_room: bytes of the host that activations may take here. train.recompute other than auto is taken as it is,
// with a warning that names what would fit, and so is what takes least where memory ran out before
// (most). Error names the budget that would do.
MemoryChoice choose_memory(const Config& resolved, Mesh&, std::size_t host_room, std::size_t most = 0);

// The most sequences, at most half of `rows`, that divide those of a replica and can be computed at a time. Nothing: it
// is one already, or no such layout is left.
std::optional<std::int64_t> fewer_sequences(const Config& resolved, int world, std::int64_t rows);

// What is left to do where a step of so many sequences at a time does not fit, in words that end a message: settings
// that would take less and are not as small as they can be.
std::string memory_advice(const Config& resolved, std::int64_t rows);

// The next smaller choice for a run that had too little memory with `before`: more is computed again, where
// train.recompute is auto, which changes no bit; where that is not less, fewer sequences are computed at a time, which
// adds gradients up in another order. Nothing: no choice takes less.
std::optional<MemoryChoice> smaller_choice(const Config& resolved, int world, const MemoryChoice& before);

}  // namespace ring
