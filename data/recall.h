#pragma once
// Generated documents that ask for what they said long before: associative recall (Arora et al. 2023, "Zoology",
// arXiv:2312.04927, section 3: multi-query associative recall) and retrieval of a few needles from noise.
//
//   recall    k v k v k v ~ ~ ~ ~ ~ ~ ~ ~ ~ ~ ~ ~ ~ ~ k v k v k v      k: key, v: its value, ~: noise
//   needles   ~ ~ ~ k v ~ ~ ~ ~ ~ ~ k v ~ ~ ~ k v ~ ~ k v k v k v
//
// Only the values behind the queries at the end, the answers, count as targets. Noise, keys and values are thirds of
// the vocabulary, in this order. Keys of a document differ; values are drawn independently; each key is asked for at
// most once.

#include <cstdint>
#include <string>
#include <vector>

#include "data/prepare.h"
#include "data/token_store.h"

namespace ring {

enum class RecallKind : std::uint8_t { recall, needles };

struct RecallOptions {
  RecallKind kind = RecallKind::recall;
  std::int64_t context = 2048;    // tokens of each document
  std::int64_t vocab_size = 192;  // at most kMostSymbols
  std::int64_t pairs = 0;         // of key and value; 0: 32 of recall, 4 needles
  std::int64_t queries = 0;       // of them that are asked for; 0: all
  std::int64_t tail = 0;          // the last so many tokens hold the queries, with noise between; 0: twice the queries
  std::int64_t documents = 20000, validation_documents = 200;
  std::uint64_t seed = 1;
  std::string output;
};

// Symbols have one character each, so that the tokens of a corpus can be read and written as text.
inline constexpr std::int64_t kMostSymbols = 21486;

struct RecallDocument {
  std::vector<std::int32_t> tokens;  // options.context of them
  std::vector<std::size_t> answers;  // which of them count, ascending
};

// With the defaults of `kind` in place of 0. Error names the option that does not fit the others.
RecallOptions resolved(RecallOptions);
// A function of its arguments: any document can be made alone. Options: resolved.
RecallDocument recall_document(const RecallOptions&, Split, std::uint32_t number);
// All documents. The report has tokens, documents and targets by split, the text's bytes and the tokenizer.
PrepareReport write_recall_corpus(const RecallOptions&);

}  // namespace ring
