#include "data/text_survey.h"

#include <cmath>
#include <utility>

#include "core/check.h"
#include "data/documents.h"
#include "text/utf8.h"

namespace ring {

std::uint64_t offset_of_character(const TextFile& file, std::uint64_t character) {
  std::uint64_t seen = 0, offset = 0, found = file.size;
  read_blocks(file, 0, file.size, [&](std::string_view block) {
    for (std::size_t i = 0; i < block.size() && found == file.size; ++i) {
      if (!utf8::is_continuation(block[i]) && seen++ == character) found = offset + i;
    }
    offset += block.size();
  });
  return found;
}

CharacterCount count_characters(const std::vector<TextFile>& files) {
  std::vector<bool> seen(0x110000);
  CharacterCount out;
  for (const TextFile& file : files) {
    std::uint64_t count = 0;
    std::string held;  // incomplete character at the end of a block
    const auto take = [&](const std::string& whole, bool at_end) {
      std::string_view text = whole;
      while (!text.empty()) {
        const std::size_t n = utf8::valid_length(text);
        if (n == 0 && !at_end && utf8::is_incomplete(text)) break;
        seen[n ? utf8::decode(text, n) : utf8::kReplacement] = true;
        text.remove_prefix(n ? n : 1);
      }
      held = std::string(text);
    };
    read_text(file, [&](std::string_view block) {
      count += static_cast<std::uint64_t>(utf8::count_characters(block));
      take(std::exchange(held, "") + std::string(block), false);
    });
    take(std::exchange(held, ""), true);
    out.per_file.push_back(count);
  }
  for (char32_t c = 0; c < seen.size(); ++c) {
    if (seen[c]) utf8::append(out.characters, c);
  }
  return out;
}

void sample_text(const std::vector<TextFile>& files, std::uint64_t max_bytes,
                 const std::function<void(std::string_view)>& take) {
  std::uint64_t total = 0;
  for (const TextFile& f : files) total += text_size(f);
  if (total == 0) fail_as_empty(files);
  constexpr std::size_t kStretch = 16384;
  const double share = total <= max_bytes ? 1 : static_cast<double>(max_bytes) / static_cast<double>(total);
  std::uint64_t number = 0;  // index of the piece; pieces at which floor(number * share) grows are taken
  const auto offer = [&](std::string_view text) {
    const double n = static_cast<double>(number++);
    if (std::floor((n + 1) * share) > std::floor(n * share)) take(text);
  };
  for (const TextFile& file : files) {
    std::string held;
    read_text(file, [&](std::string_view block) {
      held += block;
      std::string_view rest = held;
      while (rest.size() > kStretch) {
        const std::size_t newline = rest.rfind('\n', kStretch - 1);
        const std::size_t cut = newline == std::string_view::npos ? utf8::floor_boundary(rest, kStretch) : newline + 1;
        offer(rest.substr(0, cut));
        rest.remove_prefix(cut);
      }
      held = std::string(rest);
    });
    if (!held.empty()) offer(held);
  }
}

}  // namespace ring
