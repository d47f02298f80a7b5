#include "text/bpe/normalizer.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "text/utf8.h"

namespace ring::bpe {
namespace {

// A character and its length in the text; an invalid UTF-8 byte is not a Unicode character (`valid` is false).
struct Character {
  char32_t value = 0;
  std::size_t bytes = 1;
  bool valid = false;
};

Character character_at(std::string_view text, std::size_t at) {
  const std::string_view rest = text.substr(at);
  const std::size_t n = utf8::valid_length(rest);
  if (n == 0) return {};
  return {utf8::decode(rest, n), n, true};
}

// Builds the normalized text character by character, like transform() of Hugging Face's tokenizers: an additional
// character of a decomposition gets the origin of the previous input character.
class Rewriter {
 public:
  explicit Rewriter(const Passage& from) : from_(from) {}

  void keep(std::size_t bytes) {
    text_.append(from_.text, at_, bytes);
    for (std::size_t i = 0; i < bytes && !from_.origins.empty(); ++i) origins_.push_back(from_.origins[at_ + i]);
    at_ += bytes;
  }
  // Appends a normalized character, and advances in the input past the characters that it comes from.
  void put(const unicode::NormalizedCharacter& c) {
    const std::size_t before = text_.size();
    utf8::append(text_, c.character);
    if (!from_.origins.empty()) {
      const std::size_t place = c.change > 0 ? at_ - (at_ > 0) : at_;
      origins_.insert(origins_.end(), text_.size() - before, from_.origins[place]);
    }
    for (int used = c.change; used <= 0; ++used) at_ += character_at(from_.text, at_).bytes;
  }
  void finish(Passage& into) {
    into.text = std::move(text_);
    into.origins = std::move(origins_);
  }

 private:
  const Passage& from_;
  std::size_t at_ = 0;
  std::string text_;
  Origins origins_;
};

class UnicodeForm final : public Normalizer {
 public:
  explicit UnicodeForm(unicode::Form form) : to_(unicode::Normalization::of_form(form)) {}

  bool keeps(const TextSlice& s) const override { return first_unstable(s.text, 0) == s.text.size(); }

  void apply(Passage& p) const override {
    Rewriter out(p);
    std::size_t done = 0;
    while (done < p.text.size()) {
      const std::size_t unstable = first_unstable(p.text, done);
      const std::size_t begin = starter_before(p.text, done, unstable);
      out.keep(begin - done);
      done = begin;
      std::vector<char32_t> stretch;
      for (bool first = true; done < p.text.size(); first = false) {
        const Character c = character_at(p.text, done);
        if (!c.valid || (!first && to_.stable(c.value))) break;
        stretch.push_back(c.value);
        done += c.bytes;
      }
      for (const unicode::NormalizedCharacter& c : to_.normalized(stretch)) out.put(c);
      if (stretch.empty() && done < p.text.size()) out.keep(1), ++done;
    }
    out.finish(p);
  }

 private:
  std::size_t first_unstable(std::string_view text, std::size_t at) const {
    while (at < text.size()) {
      if (static_cast<unsigned char>(text[at]) < 0x80) {
        ++at;
        continue;
      }
      const Character c = character_at(text, at);
      if (c.valid && !to_.stable(c.value)) return at;
      at += c.bytes;
    }
    return at;
  }
  // Returns the start of the character before `at`, which also takes part in the normalization.
  static std::size_t starter_before(std::string_view text, std::size_t min, std::size_t at) {
    if (at == min || at == text.size()) return at;
    std::size_t begin = at - 1;
    while (begin > min && utf8::is_continuation(text[begin])) --begin;
    return character_at(text, begin).bytes == at - begin ? begin : at;
  }

  const unicode::Normalization& to_;
};

class Lowercase final : public Normalizer {
 public:
  bool keeps(const TextSlice&) const override { return false; }
  void apply(Passage& p) const override {
    Rewriter out(p);
    for (std::size_t at = 0; at < p.text.size();) {
      const Character c = character_at(p.text, at);
      at += c.bytes;
      if (!c.valid) {
        out.keep(1);
        continue;
      }
      int change = 0;
      for (const char32_t lower : unicode::lower(c.value)) out.put({lower, std::exchange(change, 1)});
    }
    out.finish(p);
  }
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string front) : front_(std::move(front)) {}
  bool keeps(const TextSlice& s) const override { return s.text.empty() || s.start == Start::cut; }
  void apply(Passage& p) const override {
    if (!keeps(p.all())) p.prepend(front_);
  }

 private:
  std::string front_;
};

class Replace final : public Normalizer {
 public:
  Replace(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}
  bool keeps(const TextSlice& s) const override { return s.text.find(from_) == std::string_view::npos; }
  void apply(Passage& p) const override { p.replace(from_, to_); }

 private:
  std::string from_, to_;
};

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> all) : all_(std::move(all)) {}
  bool keeps(const TextSlice& s) const override {
    return std::ranges::all_of(all_, [&](const auto& n) { return n->keeps(s); });
  }
  void apply(Passage& p) const override {
    const std::size_t max = 64 * p.text.size() + 4096;  // each of several Replace steps can square the size
    for (const auto& n : all_) {
      if (n->keeps(p.all())) continue;
      n->apply(p);
      if (p.text.size() > max) fail("the tokenizer's normalizers expand a short text to more than ", max, " bytes");
    }
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> all_;
};

}  // namespace

std::unique_ptr<Normalizer> unicode_form(unicode::Form form) { return std::make_unique<UnicodeForm>(form); }
std::unique_ptr<Normalizer> lowercase() {
  unicode::lower(U'A');  // throws Error now, not at the first text, if utf8proc is missing
  return std::make_unique<Lowercase>();
}
std::unique_ptr<Normalizer> prepend(std::string front) { return std::make_unique<Prepend>(std::move(front)); }
std::unique_ptr<Normalizer> replace(std::string from, std::string to) {
  return std::make_unique<Replace>(std::move(from), std::move(to));
}
std::unique_ptr<Normalizer> sequence(std::vector<std::unique_ptr<Normalizer>> all) {
  return std::make_unique<NormalizerSequence>(std::move(all));
}

}  // namespace ring::bpe
