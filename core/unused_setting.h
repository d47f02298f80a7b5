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

// A setting that means nothing beside the value of another key of its section, `cause`, such as the window of a kind of
// attention that has none. Where the cause was given later, in a file that includes the setting's or on the command
// line, the setting stems from before it and becomes `unset`, in YAML; else it is a mistake.
struct InheritedSetting {
  std::string key, cause, unset;
  std::string text;  // of the mistake; begins with the key
};
std::string inherited_setting(const InheritedSetting&);
std::optional<InheritedSetting> inherited_in(const std::string& message);  // nothing: it is another message

}  // namespace ring
