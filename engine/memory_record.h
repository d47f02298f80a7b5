#pragma once
// memory.json of a run: what the run chose so that its steps fit into memory, and the smaller choice made after memory
// ran out. A resumed run reuses the choice while settings and memory are unchanged. Checkpoints hold a copy.
//
// Only the process of rank 0 writes the file. Another rank that runs out of memory leaves a note, a file of its own in
// the folder out_of_memory/; the next start adopts the note with the smallest choice. A note is valid only for the
// newest writer (checkpoint/writer_token.h) and that writer's choice: a late note, written after another process took
// over or already made the choice smaller, has no effect.

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "comm/mesh/mesh.h"
#include "engine/memory_choice.h"
#include "engine/run_directory.h"

namespace ring {

// Thrown when memory ran out in a step or a validation and the smaller choice has been recorded: the same command
// resumes with that choice.
struct RestartWithLessMemory : Error {
  using Error::Error;
};

struct MemoryRecord {
  std::int64_t ran_out = 0;  // how often memory ran out and the choice became smaller
  // How often memory ran out in a step rather than in a validation: only steps lower the budget.
  std::int64_t steps_ran_out = 0;
  std::int64_t token = 0;                   // token of the writer; 0 if unknown
  std::int64_t micro_batch = 1;             // sequences per replica
  std::int64_t validation_micro_batch = 0;  // sequences in a validation; 0 means micro_batch
  std::uint64_t budget = 0;                 // bytes that the step must fit into
  std::uint64_t peak = 0;                   // predicted bytes of a step
  std::string plan;                         // the choice, in words
  std::string why;                          // why the choice was later reduced; empty if it was not
  // Conditions of the choice: settings as given, number of processes, device memory.
  std::map<std::string, std::string> chosen_for;

  // Records this choice. Keeps a budget that was lowered after memory ran out, even if less memory is free now.
  void set_choice(const MemoryChoice&);
  // Return a copy of this record with a smaller choice, after memory ran out in a step or in a validation.
  MemoryRecord with_smaller_choice(const MemoryChoice&, const std::string& why) const;
  MemoryRecord with_smaller_validation(std::int64_t sequences, const std::string& why) const;
  std::string reductions_text() const;  // describes the smaller choice for steps, for validations, or for both
};

std::string to_json(const MemoryRecord&);
// Throws Error if the text is not a memory record.
MemoryRecord parse_memory_record(const std::string& json);

// Returns a record with everything that is known before the choice is made. Collective.
MemoryRecord memory_record_of(const Config& resolved, Mesh&);

// Returns the run's memory record or, if ranks left notes after it, the note with the smallest choice; nullopt if there
// is neither. Call on rank 0 before it creates its own WriterToken, because only notes for the newest token are valid.
// in_checkpoint: record in the newest checkpoint, "" if there is none. It is used if memory.json is missing or, with a
// warning, if memory.json is damaged.
std::optional<MemoryRecord> recall_memory(const RunDirectory&, const std::string& in_checkpoint);
// Returns the changes that make `old` invalid, e.g. "train.memory_budget: 0 -> 5e8"; empty if `old` is still valid.
std::string changes_since(const MemoryRecord& old, const MemoryRecord& now);

// Writes memory.json and removes the notes; warns if it cannot. Call on rank 0.
void write_memory(const RunDirectory&, const MemoryRecord&);
// Writes the note of this rank. Throws Error if it cannot.
void write_memory_note(const RunDirectory&, int rank, const MemoryRecord&);

}  // namespace ring
