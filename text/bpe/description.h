#pragma once
// What a tokenizer.json says.

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
  AddedTokens added, added_normalized;          // looked for before and after the normalizer
  std::unique_ptr<Normalizer> normalizer;       // null: none
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // null: all of a text is one word
  std::vector<std::string> texts;               // of each id, what decoding gives; of special tokens nothing
  std::vector<std::string> pieces;              // of each id, as the file has it
  std::vector<bool> special;
  std::vector<std::int32_t> before, after;  // what the post_processor puts around a text
  bool blank_in_front = false;              // encoding puts a blank there, and decoding takes it away
  bool blanks_begin_words = false;          // not byte-level, and no token has a blank behind something else
  bool trims_offsets = false, keeps_first_blank = false;  // of the post_processor ByteLevel
};

// Error names `file` and the key: it is no tokenizer.json, damaged, or asks for what this program does not have.
Description read_description(const std::string& json, const std::string& file);

// Returns the text of a token that tokenizer_config.json names under `key`, such as eos_token; empty: it names none.
// Throws Error, which names file and key, if it is no token.
std::string token_in(const std::string& config, const char* key, const std::string& file);

// Byte-level vocabularies write each byte as one character: printable ones of Latin-1 as themselves, the others as
// those from U+0100 on, in order.
char32_t character_of(unsigned char byte);
int byte_of(char32_t character);  // -1: it stands for none

}  // namespace ring::bpe
