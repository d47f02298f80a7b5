#pragma once
// What a run settles before its model is built, so that whatever is wrong is said within moments and with nothing
// written: inputs, settings, the run's directory, the checkpoint to go on from, and whether all of it fits into memory.

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/memory_tier.h"
#include "checkpoint/writer_token.h"
#include "comm/mesh/mesh.h"
#include "data/config.h"
#include "data/loader.h"
#include "engine/memory_record.h"
#include "engine/run_directory.h"
#include "evaluate/tasks.h"
#include "trainer/train_options.h"

namespace ring {

struct RunStart {
  Corpora corpora;
  Config config;        // resolved
  MemoryRecord memory;  // what the run does with its memory, as far as it is known before it is chosen
  Config steps;         // config, with the micro-batch of `memory`
  RunDirectory dir;
  std::string data;                    // data_fingerprint() of what is read now
  std::string checkpoint;              // a verified one to go on from; beside `kept`, the newest; empty: none
  std::string init_from;               // a verified one whose weights a run that begins takes; empty: none
  std::vector<std::string> replaced;   // see RunSettings
  std::set<std::string> warnings;      // given so far, as a second checkpoint may give the same ones
  bool changed = false;                // settings or data differ from the checkpoint's, as somebody allowed
  std::shared_ptr<void> lock;          // rank 0's, of the directory
  std::unique_ptr<WriterToken> token;  // rank 0's
  Saving saving;                       // as far as the host has room
  std::unique_ptr<MemoryTier> tier;    // null: the launcher keeps nothing
  std::optional<std::int64_t> kept;    // the step to go on from that the launcher keeps
  std::unique_ptr<Loader> loader;      // of this rank
  std::vector<Task> tasks;             // train.eval_tasks
  std::size_t most_memory() const { return memory.steps_ran_out ? memory.budget : 0; }  // for a step; 0: what there is
  bool resumes() const { return kept || !checkpoint.empty(); }
};

// Collective. What rank 0 finds wrong with the directory is an Error on every rank.
RunStart start_run(Config, const TrainOptions&, Mesh&);

// Rank 0 looks, and all get what it found: the newest whole checkpoint of the run; empty: none. Error: all are damaged.
std::string find_newest_checkpoint(const RunDirectory&, Mesh&);
// The same of the checkpoint that run.init_from means now. Error: none, or one whose
// tokenizer is not that of the corpora.
std::string find_initial_weights(const RunStart&, Mesh&);

}  // namespace ring
