#pragma once
// The problems that validate() of a section of settings reports (core/fields.h).

#include <cstdint>
#include <string>
#include <utility>

namespace ring {

enum class SettingProblemKind : std::uint8_t {
  wrong,     // always refused
  unused,    // the setting has no effect beside the others, such as the momentum of an optimizer that is not chosen
  inherited  // the setting means nothing beside the value of another key, such as the window of dense attention
};

struct SettingProblem {
  std::string text;  // begins with the key, as its section or the whole settings name it
  SettingProblemKind kind = SettingProblemKind::wrong;
  std::string key, cause,
      unset;  // if inherited: the setting, the key beside it, and the value without meaning, in YAML

  SettingProblem(std::string wrong) : text(std::move(wrong)) {}
  SettingProblem(const char* wrong) : text(wrong) {}
};

// Returns a problem that is reported only if the user gave the key. Settings that a program wrote have all keys, and
// may have values without effect from an earlier version.
inline SettingProblem unused_setting(std::string text) {
  SettingProblem p(std::move(text));
  p.kind = SettingProblemKind::unused;
  return p;
}

// Returns a problem that goes away by itself if `cause` was given later than `key`, in a file that includes the key's
// or on the command line: `key` then takes the value `unset`. Otherwise it is refused.
inline SettingProblem inherited_setting(std::string key, std::string cause, std::string unset, std::string text) {
  SettingProblem p(std::move(text));
  p.kind = SettingProblemKind::inherited;
  p.key = std::move(key), p.cause = std::move(cause), p.unset = std::move(unset);
  return p;
}

}  // namespace ring
