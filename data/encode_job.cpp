#include "data/encode_job.h"

#include <algorithm>

namespace ring {

// A tokenizer.json finds its own special tokens in a text; others see the names of theirs as any text.
DocumentFrame::DocumentFrame(const Tokenizer& t, DocumentShape shape) : count_before_(shape == DocumentShape::text) {
  std::vector<std::int32_t> before = t.before_text(), after = t.after_text();
  const auto end = t.end_of_text();
  if (end && (after.empty() || after.back() != *end)) after.push_back(*end);
  if (shape != DocumentShape::conversation) {
    before_ = std::move(before);
    after_ = std::move(after);
  } else if (t.kind() != "tokenizer.json") {
    for (const auto& ids : {before, after})
      for (const std::int32_t id : ids) named_.emplace_back(t.piece(id), id);
  }
}

void DocumentFrame::encode(std::string_view text, bool first, Encoder& encoder, std::vector<std::int32_t>& out) const {
  const auto plain = [&](std::string_view part) {
    if (part.empty()) return;
    if (std::exchange(first, false))
      encoder.encode(part, out);
    else
      encoder.go_on(part, out);
  };
  while (!text.empty()) {
    std::size_t at = text.size(), length = 0;
    std::int32_t id = -1;
    for (const auto& [name, token] : named_)
      if (const std::size_t found = text.find(name); found < at) at = found, length = name.size(), id = token;
    plain(text.substr(0, at));
    if (id >= 0) out.push_back(id);
    text.remove_prefix(at + length);
  }
}

EncodeResult DocumentFrame::encode(const EncodeJob& job, Encoder& encoder) const {
  EncodeResult out;
  out.tokens.reserve(job.text.size() / 2);
  const auto add = [&](EncodePiece piece, std::size_t begin, bool first, bool counts) {
    piece.begin = begin;
    piece.end = out.tokens.size();
    piece.first = first;
    piece.counts = counts;
    out.pieces.push_back(piece);
  };
  for (const EncodePiece& piece : job.pieces) {
    const EncodeReport before = encoder.report();
    EncodePiece around = piece;
    around.text_bytes = 0;
    std::size_t begin = out.tokens.size();
    if (piece.first && !before_.empty()) {
      out.tokens.insert(out.tokens.end(), before_.begin(), before_.end());
      add(around, std::exchange(begin, out.tokens.size()), true, count_before_);
    }
    encode(std::string_view(job.text).substr(piece.begin, piece.end - piece.begin), piece.first, encoder, out.tokens);
    add(piece, std::exchange(begin, out.tokens.size()), piece.first && before_.empty(), piece.counts);
    if (piece.last && !after_.empty()) {
      out.tokens.insert(out.tokens.end(), after_.begin(), after_.end());
      add(around, begin, false, true);
    }
    const EncodeReport& after = encoder.report();
    const EncodeReport gained{after.invalid_bytes - before.invalid_bytes, after.unknown - before.unknown};
    if (gained.invalid_bytes + gained.unknown > 0) out.first_bad_file = std::min(out.first_bad_file, piece.file);
    out.report += gained;
    out.text_bytes += piece.text_bytes;
  }
  return out;
}

}  // namespace ring
