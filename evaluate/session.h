#pragma once
// Loads a trained model from a run: shared by eval, generate and init_from.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/state.h"
#include "engine/devices.h"
#include "engine/origin.h"
#include "engine/run_directory.h"
#include "evaluate/generate.h"
#include "kernels/fp8_moments.h"
#include "model/model.h"
#include "parallel/owned_shard.h"
#include "text/chat/format.h"
#include "text/tokenizer.h"

namespace ring {

// Returns true if a value is stored for this logical parameter. If the function is null, all parameters have a value.
// Also used by trainer/state_binding.cpp, which binds the state of a run in training.
using Holds = std::function<bool(const Param&, const LogicalParam&)>;
// The scales of a buffer of codes (kernels/fp8_moments.h), one for each of its blocks.
struct CodeScales {
  Fp8Moment form;
  Tensor scales;
};
// Adds this process's shards of the parameters to the state, named "<prefix><name>". The buffer holds the shards'
// values or moments; if these are codes, adds their scales, too. A shard may be empty.
void add_parameters(State&, const std::string& prefix, const Parameters&, const std::vector<ShardPiece>& owned,
                    const FlatBuffer&, const Holds& = {}, const std::optional<CodeScales>& = std::nullopt);

inline constexpr const char *kWeightsPrefix = "model.", *kAveragePrefix = "ema.";
inline constexpr const char* kOptimizerStatesPrefix = "optimizer.";  // followed by the state's name
inline constexpr const char* kTrainedTokensName = "train.tokens";    // value: number of tokens trained so far

// Selects the weights in a checkpoint: the latest weights, or their moving average (train.ema).
enum class SavedWeights : std::uint8_t { latest, ema };
// Throws Error if the checkpoint has no average.
void check_has_average(const FoundCheckpoint&);
// Renames the averaged weights in the manifest, so that they are loaded as the weights.
void use_averaged_weights(FoundCheckpoint&);

// Returns the newest verified checkpoint of a run, or the checkpoint at the path. Throws Error if there is none, or if
// it is damaged or removed while being read.
FoundCheckpoint find_checkpoint(const std::string& run_or_checkpoint);

// Returns the path of a checkpoint's tokenizer file, which may not exist. Throws Error if the checkpoint is outside a
// run and has no tokenizer in its folder, or if its weights were imported without a tokenizer.
std::string tokenizer_file_of(const Origin&);

// Returns the tokenizer with which a checkpoint was trained, from the checkpoint's folder (if the two were copied
// without their run) or from the run. Throws Error if there is none or if it is a different tokenizer.
std::shared_ptr<const Tokenizer> tokenizer_of(const Origin&);

// Returns the chat format stored with the checkpoint's tokenizer; its `source` is empty if there is none. Throws Error
// if the file cannot be read.
chat::Format chat_format_of(const Origin&);
// Returns the chat format for a conversation. choice: see load_chat_format().
chat::Format chat_format_of(const Origin&, const std::string& choice, const Tokenizer&);

// Loads only the model's weights and its own training states (model/training_state.h) from a checkpoint (see
// find_checkpoint()). Throws Error, which lists all mismatches.
void load_model_weights(Model&, const std::string& checkpoint, const ExecContext&, SavedWeights = SavedWeights::latest);
// Loads the model's own training states from a checkpoint, as far as it has them. Returns log messages about the
// missing states.
std::vector<std::string> load_training_states(Model&, const std::string& checkpoint);

// A loaded model. Settings, tokenizer and weights are those of the checkpoint; scheduled values are those at the
// checkpoint's step. Files of the run that differ from the checkpoint are logged.
struct Session {
  Config config;
  ExecContext ctx;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<Model> model;
  Origin origin;
  KvCacheType kv_cache = KvCacheType::automatic;  // for texts that the session generates
};
struct SessionOptions {
  int threads = 0;                                // 0 means all cores of the machine
  DeviceChoice device = DeviceChoice::automatic;  // device to compute on, whatever device the run used
  std::int64_t context = 0;                       // overrides model.context; 0 keeps it
  SavedWeights weights = SavedWeights::latest;
  KvCacheType kv_cache = KvCacheType::automatic;  // for texts that the session generates
  // Called to change the checkpoint's settings before the model is built; may be null.
  std::function<void(Config&)> change = nullptr;
};
// Opens a session. If the run is still training, opens the newest checkpoint that has not been removed. Throws Error if
// the path is not a run, if there is no checkpoint, if the checkpoint does not match its run or lacks the requested
// weights, if the context exceeds the learned positions, or if the model does not support the type of KV cache.
Session open_session(const std::string& run_or_checkpoint, const SessionOptions& = {});

// Returns `wanted`, limited to the ids that the session's tokenizer knows: the model's vocabulary may be padded.
Sampling resolve_sampling(const Session&, Sampling wanted);

}  // namespace ring
