#pragma once
// The start of a run, before its model is built: a chain of values, each made from the previous one. Any problem is
// reported as an Error within moments, and nothing is written before the last value of the chain.

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
#include "engine/resolve.h"
#include "engine/run_directory.h"
#include "evaluate/tasks.h"
#include "trainer/kept_state.h"
#include "trainer/train_options.h"

namespace ring {

// The inputs of a run, and its settings with all sizes filled in.
struct ResolvedRun {
  Corpora corpora;
  ResolvedConfig config;    // train.micro_batch and train.mlp_chunk are chosen if they were auto
  RunDirectory dir;         // the directory run.directory
  std::vector<Task> tasks;  // the tasks in train.eval_tasks
  std::string data;         // data_fingerprint() of the inputs
};

// How a run differs from the checkpoint that it resumes from.
struct Resumption {
  std::string checkpoint;             // path of the checkpoint; empty if there is none
  std::vector<std::string> replaced;  // see RunSettings::replaced
  bool changed = false;               // true if settings or data differ, as the user allowed
  std::set<std::string> warnings;     // warnings given so far
};

// A run, and the facts that can be read from its directory quickly. They are set only on rank 0; `recorded` is set on
// all ranks.
struct LocatedRun : ResolvedRun {
  std::shared_ptr<void> lock;            // lock on the directory; null if the directory does not exist yet
  Resumption newest;                     // read from the newest checkpoint with a readable manifest
  std::optional<MemoryRecord> recorded;  // memory record written by the run's last process
};

// How the run fits into memory.
struct FittedRun : LocatedRun {
  MemoryRecord memory;                      // memory record before Trainer adds its choice
  ResolvedConfig step_config;               // `config` with the micro-batch of `memory`
  Saving saving;                            // how the run may save, given the host's memory
  std::unique_ptr<MemoryTier> tier;         // null if the launcher keeps no snapshots
  std::optional<std::int64_t> newest_kept;  // the newest step of which the launcher keeps every rank's snapshot
  std::unique_ptr<Loader> loader;           // loader of this rank
  // Returns the upper bound on a step's bytes; 0 means no limit beyond the available memory.
  std::size_t max_memory() const { return memory.steps_ran_out ? memory.budget : 0; }
};

// Evaluations that are due after a step.
struct EvaluationsDue {
  bool validation = false, tasks = false;
  explicit operator bool() const { return validation || tasks; }
};
EvaluationsDue evaluations_due(const ResolvedRun&, std::int64_t step);

// The source of a run's initial state, in order of preference: the state that surviving processes kept after losing a
// peer, the launcher's in-memory snapshot, a checkpoint, given initial weights, random weights.
struct StartingState {
  std::optional<KeptStates> survivors;  // set if some processes survived the previous attempt
  bool from_survivors = false;          // true if the run continues from the state kept by the surviving ranks
  // Step of the launcher's in-memory snapshot, if there is one. With `from_survivors`, only islands that lost a process
  // load it; without a snapshot, these islands start from the outer weights.
  std::optional<std::int64_t> kept;
  // Facts read from the verified checkpoint that is loaded or, with `kept` or `from_survivors`, from the newest one.
  Resumption resumed;
  std::string init_from;  // a verified checkpoint from which only weights are loaded; empty if there is none
  bool resumes() const { return from_survivors || kept || !resumed.checkpoint.empty(); }
};

struct RunStart : FittedRun {
  std::unique_ptr<WriterToken> token;  // set on rank 0; while it is valid, no other process may commit in the directory
  StartingState from;
};

// Throws Error on every rank if rank 0 finds a problem with the directory. Collective.
RunStart start_run(Config given, const TrainOptions&, Mesh&);

// Returns the newest intact checkpoint of the run, as rank 0 finds it; empty if there is none. Throws Error if all
// checkpoints are damaged. Collective.
std::string find_newest_checkpoint(const RunDirectory&, Mesh&);
// Returns the checkpoint that run.init_from refers to now, as rank 0 finds it. Throws Error if there is none, or if the
// checkpoint's tokenizer differs from that of the corpora. Collective.
std::string find_initial_weights(const ResolvedRun&, Mesh&);

}  // namespace ring
