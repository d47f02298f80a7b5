#include "text/bpe/pre_tokenizer.h"

#include "text/bpe/unicode.h"
#include "text/utf8.h"

namespace ring::bpe {
namespace {

class PatternSplit final : public PreTokenizer {
 public:
  explicit PatternSplit(Pattern pattern) : pattern_(pattern) { unicode::Traits::all(); }
  void split(const TextSlice& s, const SliceFn& take) const override {
    for (std::size_t at = 0; at < s.text.size();) {
      const std::size_t end = piece_end(pattern_, s.text, at);
      take(s.part(at, end));
      at = end;
    }
  }

 private:
  Pattern pattern_;
};

// A match, or the text between two matches; all parts together cover the text.
struct Part {
  std::size_t begin = 0, end = 0;
  bool match = false;
};
using Parts = std::vector<Part>;

Parts parts_of(std::string_view text, const std::vector<Match>& matches, bool invert) {
  Parts parts;
  std::size_t done = 0;
  for (const Match& m : matches) {
    if (done != m.begin) parts.push_back({done, m.begin, invert});
    parts.push_back({m.begin, m.end, !invert});
    done = m.end;
  }
  if (done != text.size()) parts.push_back({done, text.size(), invert});
  return parts;
}

// Merges adjacent parts for which `joins` returns true.
template <class Joins>
Parts joined_if(const Parts& parts, Joins joins) {
  Parts out;
  bool previous = false;
  for (const Part& p : parts) {
    if (!out.empty() && joins(p.match, previous))
      out.back().end = p.end;
    else
      out.push_back(p);
    previous = p.match;
  }
  return out;
}

Parts reversed(Parts parts) {
  Parts out(parts.rbegin(), parts.rend());
  for (Part& p : out) std::swap(p.begin, p.end);
  return out;
}

Parts behaving(const Parts& parts, Behavior behavior) {
  const auto lone_match = [](bool match, bool previous) { return match && !previous; };
  switch (behavior) {
    case Behavior::removed: return joined_if(parts, [](bool, bool) { return false; });
    case Behavior::isolated: return parts;
    case Behavior::merged_with_previous: return joined_if(parts, lone_match);
    case Behavior::merged_with_next: return reversed(joined_if(reversed(parts), lone_match));
    case Behavior::contiguous: return joined_if(parts, [](bool match, bool previous) { return match == previous; });
  }
  return parts;
}

void take_parts(const TextSlice& s, const Parts& parts, Behavior behavior, const SliceFn& take) {
  for (const Part& p : behaving(parts, behavior))
    if (p.begin != p.end && !(behavior == Behavior::removed && p.match)) take(s.part(p.begin, p.end));
}

class RegexSplit final : public PreTokenizer {
 public:
  RegexSplit(Regex regex, Behavior behavior, bool invert)
      : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}
  void split(const TextSlice& s, const SliceFn& take) const override {
    take_parts(s, parts_of(s.text, regex_.find(s.text), invert_), behavior_, take);
  }

 private:
  Regex regex_;
  Behavior behavior_;
  bool invert_;
};

class LiteralSplit final : public PreTokenizer {
 public:
  LiteralSplit(std::string literal, Behavior behavior, bool invert)
      : literal_(std::move(literal)), behavior_(behavior), invert_(invert) {}
  void split(const TextSlice& s, const SliceFn& take) const override {
    std::vector<Match> matches;
    for (std::size_t at = s.text.find(literal_); at != std::string_view::npos;
         at = s.text.find(literal_, at + literal_.size()))
      matches.push_back({at, at + literal_.size()});
    take_parts(s, parts_of(s.text, matches, invert_), behavior_, take);
  }

 private:
  std::string literal_;
  Behavior behavior_;
  bool invert_;
};

class Digits final : public PreTokenizer {
 public:
  explicit Digits(bool individual) : behavior_(individual ? Behavior::isolated : Behavior::contiguous) {
    unicode::Traits::all();
  }
  void split(const TextSlice& s, const SliceFn& take) const override {
    std::vector<Match> numbers;
    for (std::size_t at = 0; at < s.text.size();) {
      const std::size_t n = utf8::valid_length(s.text.substr(at)), bytes = n ? n : 1;
      if (n && unicode::Traits::all().of(utf8::decode(s.text.substr(at), n)) & unicode::kNumber)
        numbers.push_back({at, at + bytes});
      at += bytes;
    }
    take_parts(s, parts_of(s.text, numbers, false), behavior_, take);
  }

 private:
  Behavior behavior_;
};

class PrefixSpace final : public PreTokenizer {
 public:
  void split(const TextSlice& s, const SliceFn& take) const override {
    if (s.text.starts_with(' ') || s.start == Start::cut) return take(s);
    Passage p(s);
    p.prepend(" ");
    take(p.all());
  }
};

class Metaspace final : public PreTokenizer {
 public:
  Metaspace(std::string replacement, Prepending prepending, bool split)
      : replacement_(std::move(replacement)), prepending_(prepending) {
    if (split) words_ = split_at(replacement_, Behavior::merged_with_next, false);
  }
  void split(const TextSlice& s, const SliceFn& take) const override {
    Passage p(s);
    p.replace(" ", replacement_);
    const bool here = prepending_ == Prepending::first ? s.start == Start::text
                                                       : prepending_ == Prepending::always && s.start != Start::cut;
    if (here && !p.text.starts_with(replacement_)) p.prepend(replacement_);
    if (words_)
      words_->split(p.all(), take);
    else
      take(p.all());
  }

 private:
  std::string replacement_;
  Prepending prepending_;
  std::unique_ptr<PreTokenizer> words_;
};

class PreTokenizerSequence final : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<PreTokenizer>> all) : all_(std::move(all)) {}
  void split(const TextSlice& s, const SliceFn& take) const override { from(0, s, take); }

 private:
  void from(std::size_t i, const TextSlice& s, const SliceFn& take) const {
    if (i == all_.size()) return take(s);
    all_[i]->split(s, [&](const TextSlice& part) { from(i + 1, part, take); });
  }
  std::vector<std::unique_ptr<PreTokenizer>> all_;
};

}  // namespace

std::unique_ptr<PreTokenizer> split_by(Pattern pattern) { return std::make_unique<PatternSplit>(pattern); }
std::unique_ptr<PreTokenizer> split_at(Regex regex, Behavior behavior, bool invert) {
  return std::make_unique<RegexSplit>(std::move(regex), behavior, invert);
}
std::unique_ptr<PreTokenizer> split_at(std::string literal, Behavior behavior, bool invert) {
  return std::make_unique<LiteralSplit>(std::move(literal), behavior, invert);
}
std::unique_ptr<PreTokenizer> digits(bool individual) { return std::make_unique<Digits>(individual); }
std::unique_ptr<PreTokenizer> prefix_space() { return std::make_unique<PrefixSpace>(); }
std::unique_ptr<PreTokenizer> metaspace(std::string replacement, Prepending prepending, bool split) {
  return std::make_unique<Metaspace>(std::move(replacement), prepending, split);
}
std::unique_ptr<PreTokenizer> sequence(std::vector<std::unique_ptr<PreTokenizer>> all) {
  return std::make_unique<PreTokenizerSequence>(std::move(all));
}

}  // namespace ring::bpe
