#include "cli/weights_option.h"

#include "cli/command.h"
#include "interchange/hf/peft.h"

namespace ring {

Option add_weights(Command command, SavedWeights& choice) {
  const auto take = [&choice](const std::string& name) {
    choice = name == "ema" ? SavedWeights::ema : SavedWeights::latest;
  };
  return command
      .add_option("--weights", take,
                  "Weights to use: latest (of the checkpoint's step) or ema (their moving average, train.ema)")
      .one_of({"latest", "ema"})
      .show_default("latest");
}

Option add_adapter(Command command, std::string& folder) {
  return command
      .add_option("--adapter", folder, "Low-rank adapter in PEFT's form to merge into the weights before they are used")
      .type_name("FOLDER");
}

Session open_session(const std::string& run, const SessionOptions& options, const std::string& adapter) {
  Session session = open_session(run, options);
  if (!adapter.empty()) merge_peft_adapter(session, adapter);
  return session;
}

}  // namespace ring
