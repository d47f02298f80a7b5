#include "text/sentencepiece_check.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/check.h"

namespace ring {
namespace {

// Reads a protocol buffers message (https://protobuf.dev/programming-guides/encoding) field by field.
class Message {
 public:
  struct Field {
    std::uint64_t number = 0;
    std::uint64_t value = 0;  // bits of a number
    std::string_view bytes;   // text, or a nested message
  };

  Message(std::string_view bytes, const std::string& name) : rest_(bytes), name_(name) {}
  bool done() const { return rest_.empty(); }
  Field next() {
    const std::uint64_t key = varint();
    Field field{.number = key >> 3};
    switch (key & 7) {
      case 0: field.value = varint(); break;
      case 1: field.value = fixed(8); break;
      case 2: field.bytes = take(varint()); break;
      case 5: field.value = fixed(4); break;
      default: damaged("it has a field of the unknown type ", key & 7);
    }
    return field;
  }

 private:
  template <class... Parts>
  [[noreturn]] void damaged(const Parts&... parts) const {
    fail(name_, " is not a SentencePiece model, or is damaged: ", parts...);
  }
  std::string_view take(std::uint64_t bytes) {
    if (bytes > rest_.size()) damaged("it has a field of ", bytes, " bytes where only ", rest_.size(), " are left");
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }
  std::uint64_t fixed(std::size_t bytes) {
    std::uint64_t value = 0;
    std::memcpy(&value, take(bytes).data(), bytes);
    return value;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    damaged("it has a number of more than ten bytes");
  }

  std::string_view rest_;
  const std::string& name_;
};

// Checks a ModelProto.SentencePiece. Fields: 1 piece, 2 score (f32).
void check_piece(std::string_view bytes, std::size_t id, const std::string& name) {
  bool text = false;
  for (Message piece(bytes, name); !piece.done();) {
    const Message::Field f = piece.next();
    if (f.number == 1) text = !f.bytes.empty() && f.bytes.find('\0') == std::string_view::npos;
    if (f.number != 2) continue;
    float score = 0;
    const auto bits = static_cast<std::uint32_t>(f.value);
    std::memcpy(&score, &bits, sizeof(score));
    if (!std::isfinite(score)) fail(name, " is damaged: the score of its token ", id, " is ", score);
  }
  if (!text) fail(name, " is damaged: its token ", id, " has no text, or contains a NUL");
}

// A double-array trie (Darts): byte c leads from unit i to unit i ^ offset(i) ^ c, if that unit's label is c. The
// replacements follow the trie, each terminated by a NUL; trie values are their offsets.
void check_replacements(std::string_view map, const std::string& name) {
  const auto damaged = [&](const auto&... what) {
    fail(name, " is damaged: its table of replacements (", map.size(), " bytes) ", what...);
  };
  if (map.empty()) return;
  std::uint32_t bytes = 0;
  if (map.size() < sizeof(bytes)) damaged("has no header");
  std::memcpy(&bytes, map.data(), sizeof(bytes));
  map.remove_prefix(sizeof(bytes));
  if (bytes == 0 || bytes >= map.size() || bytes % sizeof(std::uint32_t) != 0 || map.back() != '\0')
    damaged("states that its index has ", bytes, " of them");
  std::vector<std::uint32_t> units(bytes / sizeof(std::uint32_t));
  std::memcpy(units.data(), map.data(), bytes);
  const std::size_t replacements = map.size() - bytes;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const std::uint32_t unit = units[i];
    const bool value = unit >> 31;
    const std::size_t offset = std::size_t{unit >> 10} << ((unit & (1u << 9)) >> 6);
    const std::size_t place = value ? unit & 0x7FFFFFFFu : (i ^ offset) | 0xFF;  // largest unit that any byte can reach
    if (place >= (value ? replacements : units.size())) damaged("points outside itself at unit ", i);
  }
}

}  // namespace

namespace {

// Checks a TrainerSpec. Fields: 3 algorithm (3: words), 24 treat_whitespace_as_suffix.
void check_trainer(std::string_view bytes, const std::string& name) {
  bool words = false, suffix = false;
  for (Message trainer(bytes, name); !trainer.done();) {
    const Message::Field f = trainer.next();
    if (f.number == 3) words = f.value == 3;
    if (f.number == 24) suffix = f.value != 0;
  }
  if (words)
    fail(name,
         ": its pieces are whole words (model_type word), which is not supported. Use a model of type unigram or "
         "bpe");
  if (suffix)
    fail(name,
         ": its pieces have the space after a word (treat_whitespace_as_suffix), which is not supported. Use a "
         "model whose pieces have it before the word");
}

}  // namespace

// Checks a ModelProto. Fields: 1 pieces, 2 TrainerSpec, 3 and 5 normalization before encoding and after decoding.
void check_sentencepiece_model(std::string_view bytes, const std::string& name) {
  std::size_t pieces = 0;
  for (Message model(bytes, name); !model.done();) {
    const Message::Field f = model.next();
    if (f.number == 1) check_piece(f.bytes, pieces++, name);
    if (f.number == 2) check_trainer(f.bytes, name);
    if (f.number != 3 && f.number != 5) continue;
    for (Message normalizer(f.bytes, name); !normalizer.done();) {
      const Message::Field rule = normalizer.next();
      if (rule.number == 2) check_replacements(rule.bytes, name);
    }
  }
}

namespace {

// Reads a ModelProto.SentencePiece. Fields: 1 piece, 2 score, 3 type.
SentencePieces::Piece read_piece(std::string_view bytes, const std::string& name) {
  SentencePieces::Piece p;
  for (Message piece(bytes, name); !piece.done();) {
    const Message::Field f = piece.next();
    if (f.number == 1) p.text = f.bytes;
    if (f.number == 2) p.score = std::bit_cast<float>(static_cast<std::uint32_t>(f.value));
    if (f.number == 3) p.type = static_cast<SentencePieces::Type>(f.value);
  }
  return p;
}

}  // namespace

// Reads a NormalizerSpec. Fields: 2 precompiled_charsmap, 3 add_dummy_prefix, 4 remove_extra_whitespaces. If a field is
// repeated, its last occurrence is used.
SentencePieceNormalization read_normalization(std::string_view bytes, const std::string& name) {
  SentencePieceNormalization out;
  for (Message model(bytes, name); !model.done();) {
    const Message::Field f = model.next();
    if (f.number == 1)
      if (SentencePieces::Piece p = read_piece(f.bytes, name); p.type == SentencePieces::Type::user_defined)
        out.kept.push_back(std::move(p.text));
    if (f.number != 3) continue;
    for (Message spec(f.bytes, name); !spec.done();) {
      const Message::Field rule = spec.next();
      if (rule.number == 2) out.replacements = rule.bytes;
      if (rule.number == 3) out.blank_in_front = rule.value != 0;
      if (rule.number == 4) out.removes_blanks = rule.value != 0;
    }
  }
  return out;
}

// Reads a ModelProto. Fields: 1 pieces, 2 TrainerSpec (its field 3 is the algorithm, 2 for BPE), 3 NormalizerSpec (its
// field 2 is the table of replacements).
SentencePieces read_sentencepieces(std::string_view bytes, const std::string& name) {
  SentencePieces all;
  for (Message model(bytes, name); !model.done();) {
    const Message::Field f = model.next();
    if (f.number == 1) all.pieces.push_back(read_piece(f.bytes, name));
    if (f.number != 2 && f.number != 3) continue;
    for (Message spec(f.bytes, name); !spec.done();) {
      const Message::Field g = spec.next();
      if (f.number == 2 && g.number == 3) all.bpe = g.value == 2;
      if (f.number == 3 && g.number == 2) all.replaces = !g.bytes.empty();
    }
  }
  return all;
}

}  // namespace ring
