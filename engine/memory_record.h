#pragma once
// memory.json of a run: what the run chose so that its steps fit into memory, and, where memory ran out, what it went
// down to. A resume repeats that, as long as settings and memory are the same. Checkpoints hold it, too.
//
// The process of rank 0 alone writes the file. Another rank that runs out of memory leaves a note in the folder
// out_of_memory/, each in a file of its own; the next start takes the smallest of them over. A note counts for the
// newest writer (checkpoint/writer_token.h) and its choice only: what a process says late, after others have taken over
// or have become smaller already, changes nothing.

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "comm/mesh/mesh.h"
#include "engine/memory_choice.h"
#include "engine/run_directory.h"

namespace ring {

// Memory ran out in a step or a validation, and the smaller choice is recorded: the same command goes on with that.
struct MemoryRecorded : Error {
  using Error::Error;
};

struct MemoryRecord {
  std::int64_t ran_out = 0;                 // how often the choice became smaller
  std::int64_t steps_ran_out = 0;           // of these, for steps: their budget binds; others were validations
  std::int64_t token = 0;                   // of the writer; 0: not known
  std::int64_t micro_batch = 1;             // sequences at a time, of each replica
  std::int64_t validation_micro_batch = 0;  // in validations; 0: as many
  std::uint64_t budget = 0;                 // bytes that the step fits into, and
  std::uint64_t peak = 0;                   // that it is predicted to take
  std::string plan;                         // in words
  std::string why;                          // it became smaller; empty: it did not
  // What it was chosen for: settings as they were given, processes, memory of the device.
  std::map<std::string, std::string> chosen_for;

  // What was chosen. A budget that the run went down to stays, though less may be free today.
  void take(const MemoryChoice&);
  // After memory ran out in a step, or in a validation.
  MemoryRecord smaller(const MemoryChoice&, const std::string& why) const;
  MemoryRecord validating(std::int64_t sequences, const std::string& why) const;
  std::string went_down_to() const;  // in words: for steps, for validations, or both
};

std::string to_json(const MemoryRecord&);
// Error: it is none.
MemoryRecord parse_memory_record(const std::string& json);

// Collective. What a run with these settings chooses here, as far as that is known before it is chosen.
MemoryRecord memory_record_of(const Config& resolved, Mesh&);

// For rank 0, before it takes a token of its own: what the run's last process recorded, with what its ranks noted.
// in_checkpoint: the record of the newest checkpoint, which counts where the file is gone or, with a warning, damaged;
// empty: it has none. Nothing: the run never recorded anything.
std::optional<MemoryRecord> recall_memory(const RunDirectory&, const std::string& in_checkpoint);
// What no longer is what `old` was chosen for, as "train.memory_budget: 0 -> 5e8"; empty: it counts.
std::string changes_since(const MemoryRecord& old, const MemoryRecord& now);

// For rank 0; the notes are done with. What cannot be written is a warning.
void write_memory(const RunDirectory&, const MemoryRecord&);
// Error: it cannot be written.
void note_memory(const RunDirectory&, int rank, const MemoryRecord&);

}  // namespace ring
