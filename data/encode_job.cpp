#include "data/encode_job.h"

#include <algorithm>
#include <span>
#include <utility>

#include "data/text_frame.h"

namespace ring {

// For conversations, collects in named_ the special tokens that a chat template may write by name. A tokenizer.json
// finds these names in a text by itself; other tokenizers would encode them as plain text.
DocumentFrame::DocumentFrame(const Tokenizer& t, DocumentShape shape) : count_before_(shape == DocumentShape::text) {
  std::vector<std::int32_t> before = t.before_text(), after = t.after_text();
  const auto end = t.end_of_text();
  if (end && (after.empty() || after.back() != *end)) after.push_back(*end);
  if (shape != DocumentShape::conversation) {
    before_ = std::move(before);
    after_ = std::move(after);
  } else if (t.kind() != "tokenizer.json") {
    begin_ = t.bos().value_or(-1);
    std::vector<bpe::AddedToken> named;
    for (const auto& ids : {before, after, t.control_tokens()})
      for (const std::int32_t id : ids) named.push_back({.id = id, .content = t.piece(id)});
    named_ = bpe::AddedTokens(std::move(named));
  }
}

void DocumentFrame::encode(std::string_view text, bool first, Encoder& encoder, std::vector<std::int32_t>& out) const {
  const auto plain = [&](std::string_view part) {
    if (part.empty()) return;
    if (std::exchange(first, false))
      encoder.encode(part, out);
    else
      encoder.encode_continuation(part, out);
  };
  named_.split_text(text, [&](std::size_t begin, std::size_t end, std::int32_t id) {
    if (id < 0) return plain(text.substr(begin, end - begin));
    out.push_back(id);
    first |= id == begin_;  // true if a text begins here
  });
}

namespace {

// Returns the text of a piece without trailing white space that belongs to the next piece's first token. So a document
// that is split where the loss mask changes gets the same tokens as the whole document.
std::string_view text_of(const EncodeJob& job, std::size_t i, const Encoder& encoder) {
  const EncodePiece& piece = job.pieces[i];
  const std::string_view all = job.text, text = all.substr(piece.begin, piece.end - piece.begin);
  if (piece.last || i + 1 == job.pieces.size() || job.pieces[i + 1].first) return text;
  return text.substr(0, text.size() - encoder.taken_by_next(text, all.substr(job.pieces[i + 1].begin)));
}

}  // namespace

void DocumentFrame::encode_piece(std::string_view said, const EncodePiece& piece, Encoder& encoder,
                                 EncodeResult& out) const {
  const auto add = [&](EncodePiece part, std::size_t begin, bool first, bool counts) {
    part.begin = begin;
    part.end = out.tokens.size();
    part.first = first;
    part.counts = counts;
    out.pieces.push_back(part);
  };
  std::vector<std::int32_t> text;
  encode(said, piece.first, encoder, text);
  const auto before = std::span(before_).first(piece.first ? missing_before(before_, text) : 0);
  const auto after = std::span(after_).last(piece.last ? missing_after(after_, text) : 0);
  EncodePiece around = piece;
  around.text_bytes = 0;
  std::size_t begin = out.tokens.size();
  out.tokens.insert(out.tokens.end(), before.begin(), before.end());
  if (!before.empty()) add(around, std::exchange(begin, out.tokens.size()), true, count_before_);
  out.tokens.insert(out.tokens.end(), text.begin(), text.end());
  add(piece, std::exchange(begin, out.tokens.size()), piece.first && before.empty(), piece.counts);
  out.tokens.insert(out.tokens.end(), after.begin(), after.end());
  if (!after.empty()) add(around, begin, false, true);
}

EncodeResult DocumentFrame::encode(const EncodeJob& job, Encoder& encoder) const {
  EncodeResult out;
  out.tokens.reserve(job.text.size() / 2);
  for (std::size_t i = 0; i < job.pieces.size(); ++i) {
    const EncodePiece& piece = job.pieces[i];
    const EncodeReport before = encoder.report();
    encode_piece(text_of(job, i, encoder), piece, encoder, out);
    const EncodeReport& after = encoder.report();
    const EncodeReport gained{after.invalid_bytes - before.invalid_bytes, after.unknown - before.unknown};
    if (gained.invalid_bytes + gained.unknown > 0) out.first_bad_file = std::min(out.first_bad_file, piece.file);
    out.report += gained;
    out.text_bytes += piece.text_bytes;
  }
  return out;
}

}  // namespace ring
