#pragma once
// Sections of attention in YAML on one line, as they are printed to be given to another command.

#include <string>

#include "model/attention/config.h"

namespace ring {

// The kind and what differs from its defaults: "{kind: window, window: 64, sinks: 4}".
// over: a section that it is to change; what that has of other settings that the kind reads is set back.
std::string section_text(const AttentionConfig&, const AttentionConfig& over = {});

// The block and the rules as a change of the section: "{block: 128, rules: [{pattern: content, keep: 8}]}".
std::string block_text(const AttentionConfig&);

}  // namespace ring
