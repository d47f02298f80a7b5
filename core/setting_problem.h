#pragma once
// Problems that a section's validate() reports (core/fields.h).

#include <cstdint>
#include <string>
#include <utility>

namespace ring {

enum class SettingProblemKind : std::uint8_t {
  wrong,     // always refused
  unused,    // ignored given the other settings, such as the momentum of an optimizer that is not chosen
  inherited  // another key's value makes the setting meaningless, such as the window of dense attention
};

struct SettingProblem {
  std::string text;  // begins with the key, relative to its section or the root
  SettingProblemKind kind = SettingProblemKind::wrong;
  // Only if inherited: the setting, the key that voids it, and the YAML value that unsets it.
  std::string key, cause, unset;

  SettingProblem(std::string wrong) : text(std::move(wrong)) {}
  SettingProblem(const char* wrong) : text(wrong) {}
};

// Returns a problem that is reported only if the user gave the key. Generated settings have all keys, and may keep
// ineffective values of an earlier version.
inline SettingProblem unused_setting(std::string text) {
  SettingProblem p(std::move(text));
  p.kind = SettingProblemKind::unused;
  return p;
}

// Returns a problem of a setting that another key makes meaningless. If `cause` was given later than `key` (on the
// command line, or in a file that includes the file of `key`), the loader sets `key` to `unset`. Otherwise it refuses
// the settings.
inline SettingProblem inherited_setting(std::string key, std::string cause, std::string unset, std::string text) {
  SettingProblem p(std::move(text));
  p.kind = SettingProblemKind::inherited;
  p.key = std::move(key), p.cause = std::move(cause), p.unset = std::move(unset);
  return p;
}

}  // namespace ring
