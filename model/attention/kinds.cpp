#include "model/attention/kinds.h"

#include <algorithm>

#include "core/check.h"

namespace ring {

// Each kind is defined in its own file, e.g. window.cpp.
AttentionKind dense_attention();
AttentionKind window_attention();
AttentionKind dilated_attention();
AttentionKind block_sparse_attention();

std::vector<AttentionKind>& attention_kinds() {
  static std::vector<AttentionKind> kinds = {dense_attention(), window_attention(), dilated_attention(),
                                             block_sparse_attention()};
  return kinds;
}

const AttentionKind& attention_kind(const std::string& name) {
  const auto found = std::ranges::find(attention_kinds(), name, &AttentionKind::name);
  RING_CHECK(found != attention_kinds().end(), "model.attention.kind: ", name, " does not exist");
  return *found;
}

bool AttentionKind::reads_setting(const std::string& setting) const {
  return std::ranges::any_of(settings, [&](const auto& s) { return s.first == setting; });
}

std::string text_of(const AttentionConfig& c, std::optional<std::int64_t> kv_head) {
  const AttentionKind& kind = attention_kind(c.kind);
  if (kind.text) return kind.text(c, kv_head);
  std::string text = kind.name;
  for (const auto& [key, value] : given_settings(c)) text += str(", ", key, " ", value);
  return text;
}

std::string list_text(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t n : numbers) text += str(text.empty() ? "" : ", ", n);
  return text;
}

std::string kinds_help() {
  std::string text;
  for (const AttentionKind& k : attention_kinds())
    text += str(text.empty() ? "" : &k == &attention_kinds().back() ? ", or " : ", ", k.keys);
  return text;
}

std::string setting_help(const std::string& setting) {
  std::string text;
  for (const AttentionKind& k : attention_kinds())
    for (const auto& [name, meaning] : k.settings)
      if (name == setting) text += str(text.empty() ? "" : "; ", k.name, ": ", meaning);
  return text;
}

std::string kinds_that_read(const std::string& setting) {
  std::string text;
  for (const AttentionKind& k : attention_kinds())
    if (k.reads_setting(setting)) text += str(text.empty() ? "kind: " : " and ", k.name);
  return text;
}

std::string foreign_setting(const std::string& key, const std::string& value, const std::string& home,
                            const std::string& here) {
  return str(key, ": ", value, " applies to ", home, ", but this is ", here, ". Leave ", key, " out, or use ", home);
}

}  // namespace ring
