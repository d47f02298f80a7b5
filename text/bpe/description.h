#pragma once
// Parsed contents of a tokenizer.json.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/bpe/added_tokens.h"
#include "text/bpe/merges.h"
#include "text/bpe/normalizer.h"
#include "text/bpe/pre_tokenizer.h"

namespace ring::bpe {

struct Description {
  Model model;
  AddedTokens added, added_normalized;          // tokens that are matched before, and after, normalization
  std::unique_ptr<Normalizer> normalizer;       // null if there is no normalizer
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // null if the whole text is one word
  std::vector<std::string> texts;               // decoded text of each id; "" for special tokens
  std::vector<std::string> pieces;              // each token as it is written in the file
  std::vector<bool> special;
  std::vector<std::int32_t> before, after;  // tokens that the post_processor puts around a text
  bool blank_in_front = false;              // true if encoding adds a space at the front and decoding removes it
  // True if the vocabulary is not byte-level and spaces occur only at the start of tokens.
  bool blanks_begin_words = false;
  bool trims_offsets = false, keeps_first_blank = false;  // settings of the post_processor ByteLevel
};

// Parses a tokenizer.json. Throws Error, which names `file` and the key, if the text is not a tokenizer.json, is
// damaged, or requires an unsupported feature.
Description read_description(const std::string& json, const std::string& file);

// Returns the text of the token that tokenizer_config.json names under `key`, e.g. eos_token; "" if there is none.
// Throws Error, which names `file` and the key, if the value is not a token.
std::string read_config_token(const std::string& config, const char* key, const std::string& file);

// Returns the character that represents a byte in byte-level vocabularies: printable Latin-1 bytes represent
// themselves; the other bytes are U+0100, U+0101, ... in order.
char32_t character_of(unsigned char byte);
int byte_of(char32_t character);  // returns -1 if the character represents no byte

}  // namespace ring::bpe
