#pragma once
// The kinds of attention. A kind defines how settings become a Pattern
// (kernels/attention/pattern.h). Everything else is derived from the pattern, from kernels to
// pictures. To add a kind, add a file beside window.cpp and two lines in kinds.cpp (docs/extend.md).

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/pattern.h"
#include "model/attention/config.h"

namespace ring {

// Model sizes that a pattern may depend on, besides the settings.
struct ModelSizes {
  std::int64_t kv_heads = 0, context = 0;
};

// Sizes of a training run that decide whether a setting has any effect.
struct TrainingSizes {
  std::int64_t kv_heads = 0, longest = 0, steps = 0;  // longest: tokens of the longest sequence
};

std::int64_t block_size_of(const AttentionConfig&);  // tokens per block: the setting `block`, or 128 if it is 0

struct AttentionKind {
  std::string name;  // the value of model.attention.kind
  std::string keys;  // completes "a token attends to ...", e.g. "a window"
  // The settings that the kind reads, and their meaning.
  std::vector<std::pair<std::string, std::string>> settings;
  // Appends problems with these settings, like a section's validate(); null if there can be none.
  std::function<void(const AttentionConfig&, std::vector<SettingProblem>& errors)> validate;
  // Returns the pattern of layer 0, which is causal and has a shift of 0. Throws Error for problems that only the model
  // or a file can reveal. The message begins with the key, as in validate().
  std::function<Pattern(const AttentionConfig&, const ModelSizes&)> pattern;
  // Returns the settings in words, such as "window of 64, 2 sinks"; for one KV head if the heads differ. If null, the
  // text consists of the name and each setting that differs from its default.
  std::function<std::string(const AttentionConfig&, std::optional<std::int64_t> kv_head)> text;
  // Adds a text for each setting that has no effect in a run of these sizes, with the reason and the fix: "window: ..".
  // A setting without effect must not gain one with shorter sequences or fewer steps. Null if all have an effect.
  std::function<void(const AttentionConfig&, const TrainingSizes&, std::vector<std::string>& texts)> ineffective;

  bool reads_setting(const std::string& setting) const;
};

// Returns the kinds in the order in which they are listed. Programs may add kinds before settings are read.
std::vector<AttentionKind>& attention_kinds();
const AttentionKind& attention_kind(const std::string& name);  // throws Error if no kind has this name

std::string text_of(const AttentionConfig&, std::optional<std::int64_t> kv_head = {});
std::string list_text(const std::vector<std::int64_t>& numbers);  // e.g. "8, 16"

// Return texts for the settings reference: all kinds, as in "all before it, a window, .., or blocks"; and what a
// setting means for each kind, as in "window: newest tokens that are seen".
std::string kinds_help();
std::string setting_help(const std::string& setting);

// Return texts for errors: the kinds that read a setting, as in "kind: window"; and the message that a setting has no
// meaning in this place.
std::string kinds_that_read(const std::string& setting);
std::string foreign_setting(const std::string& key, const std::string& value, const std::string& home,
                            const std::string& here);
// Returns the problem of a setting that has no meaning because of `cause`, another setting of the section. If `cause`
// was given after the setting, the setting is dropped instead (core/setting_problem.h).
SettingProblem foreign_setting_problem(const std::string& cause, const std::string& key, const std::string& text);

}  // namespace ring
