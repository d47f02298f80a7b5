#pragma once
// The kinds of attention that there are. A kind says how settings make a Pattern (kernels/attention/pattern.h);
// everything else, from kernels to pictures, follows from that. A new kind is a file beside window.cpp and two lines in
// kinds.cpp (docs/extend.md).

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/pattern.h"
#include "model/attention/config.h"

namespace ring {

// What a pattern may depend on beside the settings.
struct ModelSizes {
  std::int64_t kv_heads = 0, context = 0;
};

std::int64_t block_of(const AttentionConfig&);  // tokens of a block: 128 where the settings say 0

struct AttentionKind {
  std::string name;  // the value of model.attention.kind
  std::string keys;  // completes "a token attends to ..": "a window"
  // The settings that it reads, and what they mean to it.
  std::vector<std::pair<std::string, std::string>> settings;
  // Adds what is wrong with these settings, as validate() of a section does; null: nothing can be.
  std::function<void(const AttentionConfig&, std::vector<SettingProblem>& errors)> validate;
  // What layer 0 attends over: causal, and with a shift of 0. Error, which begins with the key as those of validate do:
  // what only the model or a file can tell.
  std::function<Pattern(const AttentionConfig&, const ModelSizes&)> pattern;
  // The settings in words: "window of 64, 2 sinks"; of one KV head, where these differ. Null: the name, and each
  // setting that is not its default.
  std::function<std::string(const AttentionConfig&, std::optional<std::int64_t> kv_head)> text;

  bool reads(const std::string& setting) const;
};

// In the order in which they are listed; programs may add theirs before settings are read.
std::vector<AttentionKind>& attention_kinds();
const AttentionKind& attention_kind(const std::string& name);  // Error: there is none

std::string text_of(const AttentionConfig&, std::optional<std::int64_t> kv_head = {});
std::string list_text(const std::vector<std::int64_t>&);  // "8, 16"

// For the reference: "all before it, a window, .., or blocks"; "window: newest tokens that are seen".
std::string keys_of_kinds();
std::string meaning_of(const std::string& setting);

// For errors: "kind: window"; and that a setting was given that means nothing where it stands.
std::string kinds_that_read(const std::string& setting);
std::string foreign_setting(const std::string& key, const std::string& value, const std::string& home,
                            const std::string& here);
// The same of a setting of the section that `cause` leaves without a meaning, which is left out where it was given
// before that (core/setting_problem.h).
SettingProblem foreign_beside(const std::string& cause, const std::string& key, const std::string& text);

}  // namespace ring
