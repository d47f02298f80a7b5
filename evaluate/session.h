#pragma once
// A trained model taken from a run: what eval, generate and init_from share.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/state.h"
#include "engine/devices.h"
#include "engine/origin.h"
#include "engine/run_directory.h"
#include "evaluate/generate.h"
#include "model/model.h"
#include "parallel/owned_shard.h"
#include "text/chat/format.h"
#include "text/tokenizer.h"

namespace ring {

// Which logical parameters there is something of; null: of all.
using Holds = std::function<bool(const Param&, const LogicalParam&)>;
// Adds these as "<prefix><name>": what this process owns of them in a buffer of values or moments, which may be
// nothing.
void add_parameters(State&, const std::string& prefix, const Parameters&, const std::vector<ShardPiece>& owned,
                    const FlatBuffer&, const Holds& = {});

inline constexpr const char *kWeightsPrefix = "model.", *kAveragePrefix = "ema.";
inline constexpr const char* kStatesPrefix = "optimizer.";  // before the state's name
inline constexpr const char* kTokensName = "train.tokens";

// Which weights of a checkpoint: those of its step, or their moving average (train.ema).
enum class SavedWeights : std::uint8_t { latest, ema };
// Error: the checkpoint holds no average.
void check_average(const FoundCheckpoint&);
// From now on the manifest calls the average the weights.
void take_average(FoundCheckpoint&);

// The newest verified checkpoint of a run, or the very one that the path names. Error: none, damaged, or removed while
// it was read.
FoundCheckpoint find_checkpoint(const std::string& run_or_checkpoint);

// Returns the path of the file with a checkpoint's tokenizer, which may not exist. Throws Error if no file is known.
std::string tokenizer_file_of(const Origin&);

// The tokenizer that a checkpoint was trained with: beside it, where it was copied with its tokenizer alone, or in its
// run. Error: there is none, or another one.
std::shared_ptr<const Tokenizer> tokenizer_of(const Origin&);

// How conversations are written for the checkpoint's model, as kept with that tokenizer. Without a source where nothing
// says it. Error: the file that says it cannot be read.
chat::Format chat_format_of(const Origin&);
// The same to talk with it: see load_chat_format(), which says what choice may be.
chat::Format chat_format_of(const Origin&, const std::string& choice, const Tokenizer&);

// Fills the model's weights and training states, and nothing else, from a checkpoint (see find_checkpoint). Error lists
// what does not match.
void load_model_weights(Model&, const std::string& checkpoint, const ExecContext&, SavedWeights = SavedWeights::latest);
// Loads what a checkpoint has of the model's training states. Returns what the log says of the rest.
std::vector<std::string> load_training_states(Model&, const std::string& checkpoint);

// Settings, tokenizer and weights are those of the checkpoint, what changes by tokens as of it: files of the run that
// say otherwise are named.
struct Session {
  Config config;
  ExecContext ctx;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<Model> model;
  Origin origin;
};
struct SessionOptions {
  int threads = 0;                                // 0: as many as the machine has
  DeviceChoice device = DeviceChoice::automatic;  // where to compute, whatever the run was trained on
  std::int64_t context = 0;                       // tokens that a text may have; 0: model.context
  SavedWeights weights = SavedWeights::latest;
  std::function<void(Config&)> change = nullptr;  // changes the checkpoint's settings before the model is made
};
// Beside a run that goes on, opens the newest checkpoint that is still there. Throws Error if the path is not a run,
// has no checkpoint, one that does not fit its run or lacks such weights, or if the context is beyond learned
// positions.
Session open_session(const std::string& run_or_checkpoint, const SessionOptions& = {});

// What the session's texts are drawn with: ids that its tokenizer knows, as the model's vocabulary may be padded.
Sampling sampling_of(const Session&, Sampling wanted);

}  // namespace ring
