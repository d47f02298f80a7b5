#pragma once
// Attention sections as one line of YAML, printed for use as an argument of a different command.

#include <string>

#include "model/attention/config.h"

namespace ring {

// Returns the kind and the settings that differ from their defaults: "{kind: window, window: 64, sinks: 4}". target:
// the section to which the text will be applied; its other settings that the kind reads get their defaults.
std::string section_text(const AttentionConfig&, const AttentionConfig& target = {});

// Returns the block size and the rules as changes to a section: "{block: 128, rules: [{pattern: content, keep: 8}]}".
std::string block_text(const AttentionConfig&);

}  // namespace ring
