#pragma once
// Settings that have no effect beside the others, such as the momentum of an optimizer that is not chosen.

#include <optional>
#include <string>

namespace ring {

// For validate() of a section: `text` begins with the key. Whoever gives the key is told. Settings that a program wrote
// have all keys, and those of an earlier version may have such a value: loaded without synonyms (core/fields.h), they
// are taken as they are.
std::string unused_setting(const std::string& text);

// The text in a message of unused_setting(); nothing: it is another one.
std::optional<std::string> text_of_unused(const std::string& message);

}  // namespace ring
