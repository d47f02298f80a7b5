#pragma once
// Generated documents that test the recall of earlier tokens: associative recall (Arora et al. 2023, "Zoology",
// arXiv:2312.04927, section 3: multi-query associative recall) and retrieval of a few needles from noise.
//
//   recall    k v k v k v ~ ~ ~ ~ ~ ~ ~ ~ ~ ~ ~ ~ ~ ~ k v k v k v      k: key, v: its value, ~: noise
//   needles   ~ ~ ~ k v ~ ~ ~ ~ ~ ~ k v ~ ~ ~ k v ~ ~ k v k v k v
//
// Only the answers, i.e. the values after the queries at the end, count as targets. Noise, keys and values are thirds
// of the vocabulary, in this order. The keys of a document are distinct; values are drawn independently; each key is
// queried at most once.

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
  std::int64_t vocab_size = 192;  // at most kMaxSymbols
  std::int64_t pairs = 0;         // number of key-value pairs; 0 means 32 for recall, 4 for needles
  std::int64_t queries = 0;       // number of pairs that are queried; 0 means all
  // Number of tokens at the end that contain the queries, with noise between; 0 means twice the number of queries.
  std::int64_t tail = 0;
  std::int64_t documents = 20000, validation_documents = 200;
  std::uint64_t seed = 1;
  std::string output;
};

// Each symbol is one character, so that the tokens of a corpus can be read and written as text.
inline constexpr std::int64_t kMaxSymbols = 21486;

struct RecallDocument {
  std::vector<std::int32_t> tokens;  // options.context tokens
  std::vector<std::size_t> answers;  // sorted positions of the tokens that count as targets
};

// Replaces values of 0 by the defaults for `kind`. Throws Error, which names the option, if an option contradicts the
// others.
RecallOptions resolve_recall_options(RecallOptions);
// Generates one document, as a pure function of the arguments. The options must be resolved.
RecallDocument recall_document(const RecallOptions&, Split, std::uint32_t number);
// Writes the corpus. The report has the numbers of tokens, documents and targets by split, and of bytes of text.
PrepareReport write_recall_corpus(const RecallOptions&);

}  // namespace ring
