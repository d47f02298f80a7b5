#pragma once
// Small tokenizer.json files whose tokens can be derived from the rules by hand.

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "text/bpe/description.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace ring::test {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

inline std::string character(unsigned char byte) {
  std::string out;
  utf8::append(out, bpe::character_of(byte));
  return out;
}

// Returns a tokenizer that has each byte as its own token, followed by the results of `merges`, in order.
inline Json byte_level(const std::vector<std::pair<std::string, std::string>>& merges,
                       const std::string& pattern = "") {
  Json j = {{"model", {{"type", "BPE"}, {"vocab", Json::object()}, {"merges", Json::array()}}},
            {"added_tokens", Json::array()},
            {"decoder", {{"type", "ByteLevel"}}}};
  j["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", pattern.empty()}};
  if (!pattern.empty())
    j["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}},
          j["pre_tokenizer"]}}};
  Json& vocab = j["model"]["vocab"];
  for (int b = 0; b < 256; ++b) vocab[character(static_cast<unsigned char>(b))] = b;
  for (const auto& [a, b] : merges) {
    j["model"]["merges"].push_back(a + " " + b);
    if (!vocab.contains(a + b)) vocab[a + b] = vocab.size();
  }
  return j;
}

inline void add_token(Json& j, const std::string& content, const Json& more = Json::object()) {
  const std::size_t id = j["model"]["vocab"].size() + j["added_tokens"].size();
  Json t = {{"id", id}, {"content", content}, {"special", false}, {"normalized", false}};
  t.update(more);
  j["added_tokens"].push_back(t);
}

inline std::shared_ptr<const Tokenizer> tokenizer_of(const Json& j) { return json_tokenizer(j.dump(), "t.json"); }

// Returns a tokenizer like Llama 2's: a blank in front, U+2581 for blanks, bytes for unknown characters.
inline Json like_llama2(bool bytes = true) {
  Json vocab = {{"<unk>", 0}, {"\u2581", 1}, {"a", 2}, {"b", 3}, {"\u2581a", 4}, {"ab", 5}};
  for (int b = 0; bytes && b < 256; ++b) {
    std::array<char, 8> name{};
    std::snprintf(name.data(), name.size(), "<0x%02X>", static_cast<unsigned>(b));
    vocab[name.data()] = 6 + b;
  }
  return {{"model",
           {{"vocab", vocab},
            {"merges", {"\u2581 a", "a b"}},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", bytes}}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "\u2581"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}}},
          {"pre_tokenizer", nullptr},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}}};
}

}  // namespace ring::test
