#pragma once
// Byte-pair encoding: the section `model`.

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"

namespace ring::bpe {

// Part of a word that forms one token.
struct Symbol {
  std::int32_t id = 0;
  std::uint32_t bytes = 0;  // number of the word's bytes that the token covers
};

// Maps the ids of two adjacent tokens to their merge. Flat hash table: open addressing, at most half full.
class PairTable {
 public:
  struct Merge {
    std::uint32_t rank = 0;  // merges of lower rank come first
    std::int32_t id = -1;
  };
  explicit PairTable(std::size_t pairs = 0);
  void set(std::int32_t left, std::int32_t right, Merge);  // overwrites an existing merge
  // Returns null if the pair has no merge.
  const Merge* find(std::int32_t left, std::int32_t right) const;

 private:
  struct Slot {
    std::uint64_t key = ~std::uint64_t{0};
    Merge merge;
  };
  std::size_t slot_of(std::uint64_t key) const;
  std::vector<Slot> slots_;
};

// Allows maps of strings to be searched by string_view.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

// Vocabulary and merges. Words of byte-level vocabularies consist of bytes, words of other vocabularies of characters.
struct Model {
  bool byte_level = false;
  bool ignore_merges = false;  // true if a word that is a token is not split
  bool fuse_unknown = false;
  std::int32_t unknown = -1;  // the unknown token; if -1, characters without a token are dropped
  // Token of each byte; -1 if there is none; without byte_level, used for the byte fallback.
  std::array<std::int32_t, 256> bytes{};
  std::unordered_map<char32_t, std::int32_t> characters;
  // Tokens by text; used only with ignore_merges.
  std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>> whole;
  PairTable merges;

  bool has_byte_fallback() const;  // true if every byte has a token
};

// Splits words into tokens, one word at a time. Reuses its buffers, so use one per thread.
class Merger {
 public:
  explicit Merger(const Model& model) : model_(model) {}
  // Returns the tokens of a word, valid until the next call. Counts in `report` what the vocabulary cannot represent.
  const std::vector<Symbol>& tokens(std::string_view word, EncodeReport& report);

 private:
  struct Node {
    Symbol symbol;
    std::int32_t previous = -1, next = -1;
  };
  struct Candidate {
    std::uint32_t rank = 0;
    std::int32_t place = 0, id = 0;
    bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : place > o.place; }
  };
  void start_word(std::string_view word, EncodeReport& report);
  void start_character(std::string_view bytes, char32_t c, bool valid, EncodeReport& report);
  void add_unknown(std::size_t bytes);
  void add_symbol(Symbol s);
  void apply_merges();
  void push_candidate(std::int32_t place);

  const Model& model_;
  std::vector<Node> nodes_;
  std::vector<Candidate> queue_;
  std::vector<Symbol> out_;
  bool open_unknown_ = false;  // true if the last node is the unknown token, which the next unknown character may join
};

}  // namespace ring::bpe
